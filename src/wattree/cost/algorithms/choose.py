"""Messages of a collective under an algorithm, and NCCL's view of a group that it chooses for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import MessageSchedule
from wattree.cost.algorithms.registry import ALGORITHMS, Call
from wattree.cost.algorithms.tuning import NcclSystem
from wattree.errors import CostError
from wattree.hardware import Cluster, Device
from wattree.units import whole_number

#: Names in NCCL's tuning model → ours.
OURS: Mapping[str, str] = {"nvls-tree": "nvls"}
_CAPABILITIES = {
    "pascal": 60,
    "volta": 70,
    "turing": 75,
    "ampere": 80,
    "ada": 89,
    "hopper": 90,
    "blackwell": 100,
    "blackwell-ultra": 103,
}
#: NVIDIA's before them, which its tuning model does not have.
_UNTUNED = frozenset({"fermi", "kepler", "maxwell"})


def schedule_of(call: Call, algorithm: str) -> MessageSchedule:
    """Return the messages of a collective under one algorithm; a single rank sends none.

    Raises:
        UnknownNameError: There is no such algorithm.
        CostError: It has no such collective, or does not fit the group.
    """
    make = ALGORITHMS[algorithm]
    if call.group.ranks == 1:
        nothing = np.zeros(1, dtype=np.int64)
        return MessageSchedule(
            kind=call.kind,
            algorithm=algorithm,
            group=call.group,
            chunk_bytes=np.array([call.size_bytes]),
            source=nothing,
            target=nothing,
            rounds=(),
        )
    return make(call)


def nccl_capability(device: Device) -> int | None:
    """Return the compute capability by which NCCL tunes for a device; None if it does not.

    NVIDIA's architectures that are not known count as the newest, which NCCL's tables end with;
    those of profiled devices are their capabilities (`sm-90`).
    """
    if device.vendor != "nvidia" or device.kind != "gpu" or device.architecture in _UNTUNED:
        return None
    profiled = whole_number(device.architecture.removeprefix("sm-"))
    return _CAPABILITIES.get(device.architecture, profiled or max(_CAPABILITIES.values()))


def nccl_system(cluster: Cluster, group: RankGroup) -> NcclSystem:
    """Return NCCL's view of a group of a cluster's NVIDIA devices.

    A domain of NVLink counts as a node, as NCCL counts racks of NVL72.

    Raises:
        CostError: The devices are not NVIDIA's.
    """
    node = cluster.node
    capability = nccl_capability(node.device)
    if capability is None:
        raise CostError(
            f"NCCL's tuning model has no devices like {node.device.name}; name the algorithm"
        )
    inside = max(map(len, group.members()))
    per_device = node.nics * node.nic_bandwidth_bytes_per_s / node.devices
    is_switch = node.scale_up.kind == "switch"
    return NcclSystem(
        ranks=group.ranks,
        nodes=group.nodes,
        compute_capability=capability,
        inside_bytes_per_s=node.scale_up.bandwidth_bytes_per_s,
        between_bytes_per_s=max(per_device * inside, 1.0),
        hardware="pcie" if node.scale_up.kind == "pcie" else "nvlink",
        nvls=node.scale_up.in_network_reduction and is_switch and inside > 2,
    )
