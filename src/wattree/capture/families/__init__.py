"""Readers of `config.json`: tables of families, and functions for what no key says."""

from wattree.capture.families.library_modules import (
    CAPTURED_TYPES,
    LIBRARY_MODULES,
    library_lacks,
    sdpa_since,
)
from wattree.capture.families.registry import FAMILIES
from wattree.registry import import_all as _import_all

__all__ = ["CAPTURED_TYPES", "FAMILIES", "LIBRARY_MODULES", "library_lacks", "sdpa_since"]

_import_all(__name__, __path__)
