"""Device memory that NVIDIA's software takes besides tensors, as far as its sources tell.

Both figures are lower bounds. What a process really holds beyond its tensors is fitted to measured
memory (`memory_context_bytes`, `memory_reserved_bytes`); these say which part of that is known.

A channel of NCCL buffers what it receives from one peer: 4 MiB for the protocol Simple, 120 x 640 x
8 x 8 B for LL128 and 8 x 512 x 8 x 16 B for LL [1], in pages of 2 MiB 10 MiB, and one page of
flags for what it sends. These are the two sizes that NCCL's log shows [2]. A ring receives from one
peer; an exchange of all with all from every peer of the node. Eight H100 take 3.3 GB for their
first all-to-all [2]; 7 peers x 32 channels x 12 MiB are 2.8 GB.

References:
    [1] NCCL, src/init.cc: `DEFAULT_BUFFSIZE`, `DEFAULT_LL_BUFFSIZE`, `DEFAULT_LL128_BUFFSIZE`.
    [2] NVIDIA/nccl issue 1685 (2025).
    [3] NCCL's log, line `coll channels`: 12 and 16 (to a peer) on V100 with six links, 24 and 32
        on A100 and H100 with NVSwitch (NVIDIA/nccl issue 1785 for A100; published logs).
    [4] pytorch/pytorch issue 107667 (2023): some 300 MB since kernels are loaded when first used
        (CUDA 11.7), above 1 GB before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from wattree.hardware import Device

_MIB = 2.0**20
_RECEIVES_BYTES = 10 * _MIB  # [1], rounded up to pages: 9.2 MiB
_SENDS_BYTES = 2 * _MIB
#: Architecture → channels of collectives, and of messages to one peer over NVLink [3].
_CHANNELS: Mapping[str, tuple[int, int]] = {
    "volta": (12, 16),
    "ampere": (24, 32),
    "hopper": (24, 32),
}
_CONTEXT_BYTES = 300e6  # [4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """One process group of a rank.

    Attributes:
        name: Its mesh axes, for people.
        ranks: Its size.
        peers_inside: Ranks of its node that are in it, besides the rank itself.
        exchanges: Whether all its ranks send to all, or single ranks to each other.
    """

    name: str
    ranks: int
    peers_inside: int
    exchanges: bool


def communicator_bytes(group: Communicator, device: Device) -> float:
    """Return the buffers that a communicator holds at least; 0 where no source tells. [B]

    Counts rings, and messages between the peers of a node. Trees, in-network reduction and the
    shared buffer of messages over the network come on top [2].
    """
    channels = _CHANNELS.get(device.architecture)
    if channels is None or group.ranks < 2:
        return 0.0
    collective, to_a_peer = channels
    of_channel = _RECEIVES_BYTES + _SENDS_BYTES
    if group.exchanges:
        return group.peers_inside * to_a_peer * of_channel
    return collective * of_channel


def context_bytes(device: Device) -> float:
    """Return what a process holds on a device before its first tensor, at least. [B]"""
    return _CONTEXT_BYTES if device.vendor == "nvidia" and device.kind == "gpu" else 0.0
