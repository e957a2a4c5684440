"""One way of expressing rows per source, each in its own file.

Rows of every source are read by `generic`; other files add what a publication states outside its
table, and no more.
"""

from wattree.registry import import_all as _import_all
from wattree.validation.sources.registry import SOURCES, Expression

__all__ = ["SOURCES", "Expression"]

_import_all(__name__, __path__)
