"""A topology file of either kind, told apart by its beginning."""

from __future__ import annotations

from pathlib import Path

from wattree.files import read_text
from wattree.hardware.imports.nccl_xml import from_nccl_xml
from wattree.hardware.imports.topo_matrix import from_topo_matrix
from wattree.hardware.imports.topology import ImportedTopology

__all__ = ["read_topology"]


def read_topology(
    path: str | Path,
    *,
    nvlink_bytes_per_s: float,
    pcie_bytes_per_s: float,
    socket_bytes_per_s: float,
) -> ImportedTopology:
    """Return what NCCL's XML or the table of `nvidia-smi topo -m` describes.

    The rates are those of `from_topo_matrix`, for the table; the XML has its own.

    Raises:
        JobError: The file cannot be read or is neither.
    """
    if read_text(path).lstrip().startswith("<"):
        return from_nccl_xml(path)
    return from_topo_matrix(
        path,
        nvlink_bytes_per_s=nvlink_bytes_per_s,
        pcie_bytes_per_s=pcie_bytes_per_s,
        socket_bytes_per_s=socket_bytes_per_s,
    )
