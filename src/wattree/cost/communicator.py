"""Device memory of NVIDIA's software besides tensors: contexts and communicators.

A channel of NCCL buffers what it receives from one peer: 4 MiB for the protocol Simple, 120 x 640 x
8 x 8 B for LL128 and 8 x 512 x 8 x 16 B for LL [1], in pages of 2 MiB 10 MiB, and one page of
flags for what it sends. These are the two sizes that NCCL's log shows [2]. A ring receives from one
peer; an exchange of all with all from every peer of the node. Eight H100 take 3.3 GB for their
first all-to-all [2]; 7 peers x 32 channels x 12 MiB are 2.8 GB. To those of rings come trees,
in-network reduction, the shared buffer of messages over the network and groups that software makes
besides those of the mesh: a fitted factor (`general.memory_communicators`).

References:
    [1] NCCL, src/init.cc: `DEFAULT_BUFFSIZE`, `DEFAULT_LL_BUFFSIZE`, `DEFAULT_LL128_BUFFSIZE`.
    [2] NVIDIA/nccl issue 1685 (2025).
    [3] NCCL's log, line `coll channels`: 12 and 16 (to a peer) on V100 with six links, 24 and 32
        on A100 and H100 with NVSwitch (NVIDIA/nccl issue 1785 for A100; published logs).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.hardware import Device, Node

_MIB = 2.0**20
#: Of a channel to one peer: what it receives into [1], rounded up to pages, and flags.
_CHANNEL_BYTES = (10 + 2) * _MIB
#: Architecture → channels of collectives, and of messages to one peer over NVLink [3].
_CHANNELS: Mapping[str, tuple[int, int]] = {
    "volta": (12, 16),
    "ampere": (24, 32),
    "hopper": (24, 32),
    "blackwell": (24, 32),
}
#: Without NVLink, NCCL takes few channels: two to four over PCIe ("coll channels" of its log).
_PCIE_CHANNELS = (4, 4)
#: Peers of an exchange that keep buffers of their own; with more, they share them.
_MOST_PEERS = 7
#: A stage sends to the next and the previous one.
_NEIGHBOURS = 2


def communicator_bytes(
    degrees: Mapping[str, Floats | Integers | int], node: Node
) -> tuple[Floats, Floats]:
    """Return the buffers of one rank's rings, and those of its messages to single peers. [B]

    One ring of all ranks, one for tensor parallelism, one for what replicas reduce (with context
    ranks) and one for context parallelism; messages between experts and between stages.

    Args:
        degrees: Axis → degree, numbers or arrays `(n,)`.
        node: Of the rank.
    """
    channels = _channels(node.device, node.scale_up.kind)
    if channels is None:
        return np.zeros(1), np.zeros(1)
    collective, to_a_peer = channels
    size = {axis: np.atleast_1d(np.asarray(values, float)) for axis, values in degrees.items()}
    one = np.ones(1)
    tp, cp, ep, pp = (size.get(axis, one) for axis in ("tp", "cp", "ep", "pp"))
    replicas = size.get("dp", one) * size.get("fsdp", one) * ep
    holders = replicas * cp
    world = 1.0 * (holders * tp * pp > 1)
    rings = world + (tp > 1) + (holders > 1) + (cp > 1)
    exchange = np.clip(np.minimum(ep * tp, node.devices) - 1.0, 0.0, _MOST_PEERS) * (ep > 1)
    neighbours = np.where(pp > 1, np.minimum(_NEIGHBOURS, node.devices // (holders * tp)), 0.0)
    peers = exchange + np.maximum(neighbours - 1.0, 0.0)
    return rings * collective * _CHANNEL_BYTES, peers * to_a_peer * _CHANNEL_BYTES


def _channels(device: Device, link: str) -> tuple[int, int] | None:
    """Return the channels of collectives and of one peer; None without NCCL."""
    if device.vendor != "nvidia" or device.kind != "gpu":
        return None
    return _PCIE_CHANNELS if link == "pcie" else _CHANNELS.get(device.architecture, (24, 32))
