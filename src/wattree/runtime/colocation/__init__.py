"""Several processes of a job on one device: their placement and supervision.

Nothing here loads torch.
"""

from wattree.runtime.colocation.environment import colocation_from
from wattree.runtime.colocation.layout import layout

__all__ = [
    "colocation_from",
    "layout",
]
