"""Topologies written by other tools: NCCL's XML, and the table of nvidia-smi."""

from wattree.hardware.imports.rates import NVLINK_BYTES_PER_S
from wattree.hardware.imports.read import read_topology

__all__ = [
    "NVLINK_BYTES_PER_S",
    "read_topology",
]
