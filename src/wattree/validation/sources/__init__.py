"""One way of expressing rows per source, each in its own file.

A source's convention is what its rows do not print and its code, paper or logs do. It is written
once here, never per row.
"""

from wattree.validation.sources import (
    bigscience,
    deep_learning_examples,
    dgxc,
    fms_fsdp,
    generic,
    gpu_benchmark,
    jax_toolbox,
    lambda_labs,
    llm_foundry,
    megatron_bridge,
    megatron_lm,
    simumax,
    timm_benchmark,
    torchtitan,
)
from wattree.validation.sources.registry import SOURCES, Expression

__all__ = [
    "SOURCES",
    "Expression",
    "bigscience",
    "deep_learning_examples",
    "dgxc",
    "fms_fsdp",
    "generic",
    "gpu_benchmark",
    "jax_toolbox",
    "lambda_labs",
    "llm_foundry",
    "megatron_bridge",
    "megatron_lm",
    "simumax",
    "timm_benchmark",
    "torchtitan",
]
