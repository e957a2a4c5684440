"""Training frameworks: a job becomes their configuration files, and these become jobs."""

from wattree.frameworks.export import ExportedRecipe, export_recipe, zipped_recipe
from wattree.frameworks.framework import (
    FRAMEWORKS,
    ConcreteJob,
    Framework,
    Imported,
    Written,
    written_frameworks,
)
from wattree.frameworks.imports import ImportedRecipe, import_recipe
from wattree.frameworks.settings import Given, Settings
from wattree.registry import import_all as _import_all

__all__ = [
    "FRAMEWORKS",
    "ConcreteJob",
    "ExportedRecipe",
    "Framework",
    "Given",
    "Imported",
    "ImportedRecipe",
    "Settings",
    "Written",
    "export_recipe",
    "import_recipe",
    "written_frameworks",
    "zipped_recipe",
]

_import_all(__name__, __path__)
