"""The meters, one kind per file. Importing this module fills the registry `METERS`."""

from wattree.registry import import_all as _import_all

_import_all(__name__, __path__)
