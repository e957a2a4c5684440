"""Topologies written by other tools: NCCL's XML, and the table of nvidia-smi."""

from wattree.hardware.imports.nccl_xml import from_nccl_xml
from wattree.hardware.imports.rates import NVLINK_BYTES_PER_S
from wattree.hardware.imports.read import read_topology
from wattree.hardware.imports.topo_matrix import from_topo_matrix
from wattree.hardware.imports.topology import ImportedTopology

__all__ = [
    "NVLINK_BYTES_PER_S",
    "ImportedTopology",
    "from_nccl_xml",
    "from_topo_matrix",
    "read_topology",
]
