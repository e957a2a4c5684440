"""Training frameworks: a job becomes their configuration files, and these become jobs."""

from wattree.frameworks import accelerate as _accelerate  # noqa: F401  registers it
from wattree.frameworks import deepspeed as _deepspeed  # noqa: F401
from wattree.frameworks import hf_trainer as _hf_trainer  # noqa: F401
from wattree.frameworks import llm_foundry as _llm_foundry  # noqa: F401
from wattree.frameworks import maxtext as _maxtext  # noqa: F401
from wattree.frameworks import megatron_bridge as _megatron_bridge  # noqa: F401
from wattree.frameworks import megatron_lm as _megatron_lm  # noqa: F401
from wattree.frameworks import torchtitan as _torchtitan  # noqa: F401
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
