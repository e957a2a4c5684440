"""One way of expressing rows per source, each in its own file.

Rows of every source are read by `generic`; other files add what a publication states outside its
table, and no more.
"""

from wattree.validation.sources import (
    bigscience,
    deep_learning_examples,
    fabrics,
    generic,
    gpu_benchmark,
    jax_toolbox,
    lambda_labs,
    megatron_bridge,
    timm_benchmark,
)
from wattree.validation.sources.registry import SOURCES, Expression

__all__ = [
    "SOURCES",
    "Expression",
    "bigscience",
    "deep_learning_examples",
    "fabrics",
    "generic",
    "gpu_benchmark",
    "jax_toolbox",
    "lambda_labs",
    "megatron_bridge",
    "timm_benchmark",
]
