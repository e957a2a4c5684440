"""Names of MaxText: its axes, policies, models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from wattree.files import read_yaml
from wattree.hardware import Node

#: Axis of ours → axis of MaxText, where `fsdp` and `dp` are not the same.
AXES: Final = {
    "dp": "data",
    "fsdp": "fsdp",
    "tp": "tensor",
    "cp": "context",
    "pp": "pipeline",
    "ep": "expert",
}
#: Its axis for tensor parallelism whose norms are split over positions.
SEQUENCE: Final = "tensor_sequence"
#: Its second axis of fully sharded weights, over their other dims.
TRANSPOSED: Final = "fsdp_transpose"
CONTEXTS: Final = {"gather": "all_gather", "ring": "ring"}
OPTIMIZERS: Final = {"adamw": "adamw", "adam": "adam_pax", "sgd": "sgd"}
PRECISIONS: Final = {
    "bf16": {"dtype": "bfloat16"},
    "fp32": {"dtype": "float32"},
    "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
}


@cache
def facts() -> dict[str, Any]:
    """Return the names and policies of MaxText."""
    return read_yaml(Path(__file__).with_name("maxtext.yaml"))


def cores_of(node: Node) -> int:
    """Return the devices that JAX has of each device of a node, over which MaxText's axes lie."""
    return int(facts()["cores"].get(node.device.name, 1))
