"""Jobs: YAML to typed values. The readers import pydantic, so they are loaded on first use."""

from typing import TYPE_CHECKING

from wattree.job.inputs import Input, InputDeclaration, read_declaration
from wattree.job.job import (
    AUTO,
    CROSS_ENTROPY,
    INFERENCE,
    Data,
    Ffn,
    Job,
    ModelSource,
    Neighbour,
    TrainingOptions,
    WorkloadKind,
    naming,
)
from wattree.job.module import ModuleSource, module_source, names_module, seen_from
from wattree.job.problems import ranges
from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.job.cluster import with_power_limit
    from wattree.job.energy import own_pue_in_words, prices_in_words, rent_in_words, site_in_words
    from wattree.job.load import job_from_mapping, load_job
    from wattree.job.schema import job_schema

__all__ = [
    "AUTO",
    "CROSS_ENTROPY",
    "INFERENCE",
    "Data",
    "Ffn",
    "Input",
    "InputDeclaration",
    "Job",
    "ModelSource",
    "ModuleSource",
    "Neighbour",
    "TrainingOptions",
    "WorkloadKind",
    "job_from_mapping",
    "job_schema",
    "load_job",
    "module_source",
    "names_module",
    "naming",
    "own_pue_in_words",
    "prices_in_words",
    "ranges",
    "read_declaration",
    "rent_in_words",
    "seen_from",
    "site_in_words",
    "with_power_limit",
]

__getattr__ = _fetching(__name__)
