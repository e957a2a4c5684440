"""The hybrid cube mesh of DGX-1 with V100: eight devices, six links each, single and double."""

from __future__ import annotations

from collections.abc import Sequence

from wattree.errors import HardwareError
from wattree.hardware.network import Network
from wattree.hardware.topologies.mesh import cabled

_LINKS_PER_DEVICE = 6
#: Pair → NVLinks between them, as `nvidia-smi topo -m` shows it on DGX-1V and p3.16xlarge, and as
#: figure 5 of NVIDIA, DGX-1 With Tesla V100 System Architecture, WP-08437, 2017, draws it.
CUBE_MESH_LINKS = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}


def cube_mesh(devices: Sequence[str], *, bandwidth_bytes_per_s: float, latency_s: float) -> Network:
    """Return the hybrid cube mesh. Devices pass traffic on, as NCCL lets them.

    Args:
        devices: Eight names.
        bandwidth_bytes_per_s: All six links of one device together, one direction. [B/s]
        latency_s: Of one cable. [s]

    Raises:
        HardwareError: There are not eight devices.
    """
    if len(devices) != 8:
        raise HardwareError(
            f"a hybrid cube mesh joins 8 devices, found {len(devices)}; use `mesh`, `links` or 8"
        )
    link = bandwidth_bytes_per_s / _LINKS_PER_DEVICE
    widths = {pair: count * link for pair, count in CUBE_MESH_LINKS.items()}
    return cabled(devices, widths, latency_s=latency_s, kind="nvlink", forwards=True)
