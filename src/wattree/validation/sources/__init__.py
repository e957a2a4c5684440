"""One way of expressing rows per source, each in its own file.

A source's convention is what its rows do not print and its code, paper or logs do. It is written
once here, never per row.
"""

from wattree.validation.sources import (
    bigscience,
    dgxc,
    fms_fsdp,
    generic,
    llm_foundry,
    megatron_bridge,
    megatron_lm,
    simumax,
    torchtitan,
)
from wattree.validation.sources.registry import SOURCES, Expression

__all__ = [
    "SOURCES",
    "Expression",
    "bigscience",
    "dgxc",
    "fms_fsdp",
    "generic",
    "llm_foundry",
    "megatron_bridge",
    "megatron_lm",
    "simumax",
    "torchtitan",
]
