"""Reads a topology file; its beginning determines its kind."""

from __future__ import annotations

from pathlib import Path

from wattree.errors import JobError
from wattree.files import read_text
from wattree.hardware.imports.nccl_xml import from_nccl_xml
from wattree.hardware.imports.topo_matrix import from_topo_matrix
from wattree.hardware.imports.topology import ImportedTopology


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
    text = read_text(path).lstrip()
    if not text:
        raise JobError(
            str(path),
            [
                "found an empty file, expected the XML of NCCL_TOPO_DUMP_FILE or "
                "`nvidia-smi topo -m`"
            ],
        )
    if text.startswith("<"):
        return from_nccl_xml(path)
    return from_topo_matrix(
        path,
        nvlink_bytes_per_s=nvlink_bytes_per_s,
        pcie_bytes_per_s=pcie_bytes_per_s,
        socket_bytes_per_s=socket_bytes_per_s,
    )
