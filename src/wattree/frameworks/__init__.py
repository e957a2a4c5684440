"""Training frameworks: a job becomes their configuration files, and these become jobs."""

from wattree.frameworks import megatron_lm as _megatron_lm  # noqa: F401  registers it
from wattree.frameworks import torchtitan as _torchtitan  # noqa: F401  registers it
from wattree.frameworks.export import ExportedRecipe, export_recipe
from wattree.frameworks.framework import FRAMEWORKS, ConcreteJob, Framework, Imported, Written
from wattree.frameworks.imports import ImportedRecipe, import_recipe
from wattree.frameworks.settings import Settings

__all__ = [
    "FRAMEWORKS",
    "ConcreteJob",
    "ExportedRecipe",
    "Framework",
    "Imported",
    "ImportedRecipe",
    "Settings",
    "Written",
    "export_recipe",
    "import_recipe",
]
