"""NCCL's tuning model: which algorithm and protocol NCCL selects.

After `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` in src/graph/tuning.cc of NCCL 2.28 to 2.30
(NVIDIA). What NCCL's graph search finds (channels and their bandwidth) is an input here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost.algorithms.protocols import (
    BASE_LATENCIES_S,
    HARDWARE_LATENCIES_S,
    Protocol,
)
from wattree.cost.algorithms.registry import REDUCTIONS
from wattree.errors import CostError

_GB = 1e9
_VOLTA, _AMPERE, _HOPPER, _BLACKWELL = range(4)
# Tables of GB/s by generation (for LL between nodes, the first row: with Intel's CPUs), then by one
# node, two nodes, more.
_LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)  # per channel
_TREE_LL128_MOST = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_TREE_MOST = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
_NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
#: By powers of two from 64 B: share of its bandwidth that a tree reaches at middle sizes.
_TREE_CORRECTION = {
    Protocol.LL: (
        *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
        *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0),
    ),
    Protocol.LL128: (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0),
    ),
    Protocol.SIMPLE: (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}
#: Host time for posting to the network with Intel's CPUs, us; three times for Simple.
_NET_OVERHEAD_US = 1.0
#: Factor on the latency of long rings between nodes, before and from Ampere on.
_PLATEAU = (1.9, 1.4)
_SIMPLE_ONLY = frozenset({"nvls", "nvls-tree"})
#: Algorithms with their protocols, in the order in which NCCL tries them: the first of equals wins.
NCCL_KEYS = (
    *((algorithm, protocol) for algorithm in ("ring", "tree") for protocol in Protocol),
    ("nvls-tree", Protocol.SIMPLE),
    ("nvls", Protocol.SIMPLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSystem:
    """The inputs of NCCL's tuning model for a communicator.

    Attributes:
        ranks, nodes: Members, and domains of NVLink or nodes that they are spread over evenly.
        compute_capability: 70, 80, 90, 100, ….
        inside_bytes_per_s: Bandwidth of all channels together within a node, one direction. [B/s]
        between_bytes_per_s: The same between nodes: the adapters of a node. [B/s]
        channels: Rings that NCCL's search finds; it bounds what some protocols reach.
        hardware: Within a node: `nvlink` or `pcie`.
        nvls: Switches within nodes add.
    """

    ranks: int
    nodes: int
    compute_capability: int
    inside_bytes_per_s: float
    between_bytes_per_s: float
    channels: int = 16
    hardware: str = "nvlink"
    nvls: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks or self.channels < 1:
            raise CostError(f"impossible communicator: {self}")
        if self.inside_bytes_per_s <= 0 or self.between_bytes_per_s <= 0:
            raise CostError(f"a communicator needs bandwidths above 0 B/s: {self}")

    @property
    def generation(self) -> int:
        """Row of the tables."""
        capability = self.compute_capability
        return (capability >= 80) + (capability >= 90) + (capability >= 100)


class NcclColumns(NamedTuple):
    """NCCL's predictions for each of `NCCL_KEYS` on communicators, one column each.

    Attributes:
        rate_bytes_per_s: Size over time without latency; 0 where it may not be used. Shape
            `(keys, k)`. [B/s]
        latency_s: Of no bytes, `(keys, k)`. [s]
        long_from_bytes: Size from which rings between nodes have a longer latency, `(k,)`. [B]
        plateau: Factor on it then, `(k,)`.
    """

    rate_bytes_per_s: Floats
    latency_s: Floats
    long_from_bytes: Floats
    plateau: Floats

    def of(self, column: Integers) -> NcclColumns:
        """Return selected columns, in any order and with repetition."""
        return NcclColumns(
            self.rate_bytes_per_s[:, column],
            self.latency_s[:, column],
            self.long_from_bytes[column],
            self.plateau[column],
        )


def nccl_columns(kind: str, systems: Sequence[NcclSystem]) -> NcclColumns:
    """Return NCCL's predictions for each of several communicators.

    Raises:
        CostError: NCCL does not tune such a collective.
    """
    if kind not in REDUCTIONS:
        raise CostError(f"NCCL does not tune {kind}; it tunes {', '.join(REDUCTIONS)}")
    rate, latency = np.zeros((2, len(NCCL_KEYS), len(systems)))
    for column, system in enumerate(systems):
        for algorithm in _algorithms(kind, system) if system.ranks > 1 else ():
            for protocol in (Protocol.SIMPLE,) if algorithm in _SIMPLE_ONLY else tuple(Protocol):
                if _is_enabled(protocol, system):
                    row = NCCL_KEYS.index((algorithm, protocol))
                    rate[row, column] = _algorithm_rate(kind, algorithm, protocol, system) * _GB
                    latency[row, column] = _latency_us(kind, algorithm, protocol, system) * 1e-6
    return NcclColumns(
        rate_bytes_per_s=np.maximum(rate, 0.0),
        latency_s=latency,
        long_from_bytes=np.array([64.0 * system.channels * system.ranks for system in systems]),
        plateau=np.array(
            [
                _PLATEAU[system.compute_capability >= 80] if system.nodes > 1 else 1.0
                for system in systems
            ]
        ),
    )


def nccl_expected_s(kind: str, size_bytes: Floats, columns: NcclColumns) -> Floats:
    """Return NCCL's predicted time of each of `NCCL_KEYS`; infinite where it may not be used.

    Args:
        kind: A collective that NCCL tunes.
        size_bytes: For each column, `(k,)`. [B]
        columns: The communicators.
    """
    times = np.full(columns.latency_s.shape, np.inf)
    for row, (algorithm, protocol) in enumerate(NCCL_KEYS):
        rate, later = columns.rate_bytes_per_s[row], np.ones(len(size_bytes))
        used = rate > 0
        if not used.any():
            continue
        if kind == "all_reduce" and algorithm == "tree":
            rate = rate * _tree_correction(protocol, size_bytes)
        if kind == "all_reduce" and (algorithm, protocol) == ("ring", Protocol.SIMPLE):
            later = np.where(size_bytes >= columns.long_from_bytes, columns.plateau, 1.0)
        expected = columns.latency_s[row] * later + size_bytes / np.where(used, rate, 1.0)
        times[row] = np.where(used, expected, np.inf)
    return times


def _algorithms(kind: str, system: NcclSystem) -> list[str]:
    found = ["ring"]
    if kind == "all_reduce":
        found.append("tree")
        if system.nvls and system.nodes > 1:
            found.append("nvls-tree")
    if system.nvls and system.nodes == 1:
        found.append("nvls")
    return found


def _is_enabled(protocol: Protocol, system: NcclSystem) -> bool:
    """Return whether NCCL uses the protocol here: LL128 only over NVLink, from Volta on."""
    if protocol is not Protocol.LL128:
        return True
    return system.hardware == "nvlink" and system.compute_capability >= 70


def _steps(kind: str, ranks: int) -> int:
    return (2 if kind == "all_reduce" else 1) * (ranks - 1)


def _algorithm_rate(kind: str, algorithm: str, protocol: Protocol, system: NcclSystem) -> float:
    """Return size over time, latency excluded. [GB/s]"""
    bus = _bus_rate(kind, algorithm, protocol, system)
    if algorithm != "ring" and kind in {"all_gather", "reduce_scatter"}:
        return bus
    if algorithm in {"ring", "nvls", "nvls-tree"}:
        return bus * system.ranks / _steps(kind, system.ranks)
    return bus / 2


def _bus_rate(kind: str, algorithm: str, protocol: Protocol, system: NcclSystem) -> float:
    """Return the bandwidth of all channels together. [GB/s]"""
    channels, few = system.channels, min(system.nodes, 3) - 1
    generation = system.generation
    inside = system.inside_bytes_per_s / _GB
    between = system.between_bytes_per_s / _GB if system.nodes > 1 else inside
    if algorithm in {"nvls", "nvls-tree"}:
        return _nvls_rate(kind, algorithm, system, inside, between)
    # NCCL takes the bandwidth within a node for two nodes as well; its search has by then bounded
    # that by the adapters, as here.
    bus = min(inside, between)
    ll_most = _LL_MOST[generation if system.nodes == 1 else 0][few]
    if algorithm == "ring":
        return {
            Protocol.LL: min(ll_most, bus * 0.5),
            Protocol.LL128: min(bus * 0.92, channels * _RING_LL128_MOST[generation][few]),
            Protocol.SIMPLE: bus,
        }[protocol]
    bus = min(bus * 0.92, channels * _TREE_MOST[generation][few])
    flags = 7 / 9 if system.nodes == 1 else 120 / 128
    return {
        Protocol.LL: min(bus / 3.8, ll_most),
        Protocol.LL128: min(bus * flags, channels * _TREE_LL128_MOST[generation][few]),
        Protocol.SIMPLE: bus,
    }[protocol]


def _nvls_rate(
    kind: str, algorithm: str, system: NcclSystem, inside: float, between: float
) -> float:
    """Return the bandwidth of NVLS; one channel is reserved for synchronization."""
    channels, few = system.channels, min(system.nodes, 3) - 1
    if channels < 2:
        return 0.0
    per_node = system.ranks / system.nodes
    inside *= _NVLS_EFFICIENCY[system.generation] * (channels - 1) / channels
    inside *= 2.0 if kind == "all_reduce" else (per_node - 1) / per_node
    if algorithm == "nvls":
        return inside
    most = channels * _NVLS_TREE_MOST[system.generation][few]
    return min(inside, between * (2 if system.nodes <= 2 else 1), most)


def _latency_us(kind: str, algorithm: str, protocol: Protocol, system: NcclSystem) -> float:
    base = BASE_LATENCIES_S[algorithm][protocol] * 1e6
    inside = HARDWARE_LATENCIES_S[system.hardware][algorithm][protocol] * 1e6
    per_node = system.ranks / system.nodes
    # With one rank to a node nothing hides the network, whose latency is then that of trees.
    row = "tree" if per_node == 1 and algorithm == "ring" else algorithm
    between = HARDWARE_LATENCIES_S["network"][row][protocol] * 1e6
    doublings = system.nodes.bit_length() - 1
    if algorithm == "ring":
        return base + _ring_latency_us(kind, protocol, system, inside, between)
    if algorithm == "tree":
        return base + 2 * ((int(per_node) - 1) * inside + doublings * between)
    if algorithm == "nvls":
        return inside
    return base + inside + 2 * doublings * between


def _ring_latency_us(
    kind: str, protocol: Protocol, system: NcclSystem, inside: float, between: float
) -> float:
    steps = _steps(kind, system.ranks)
    crossings = 0
    if system.nodes > 1:
        crossings = 2 * (system.nodes - 1) if kind == "all_reduce" else system.nodes - 1
        posting = _NET_OVERHEAD_US * (3 if protocol is Protocol.SIMPLE else 1)
        inside = max(inside, posting)
    return (steps - crossings) * inside + crossings * between


def _tree_correction(protocol: Protocol, size_bytes: Floats) -> Floats:
    """Return the share of its bandwidth that a tree achieves at each size."""
    corrections = np.array(_TREE_CORRECTION[protocol])
    # The power of two below each size, counted from 64 B; frexp is exact.
    power = np.frexp(np.floor(size_bytes))[1].astype(np.int64) - 1 - 6
    known = (power >= 0) & (power < len(corrections))
    return np.where(known, corrections[np.clip(power, 0, len(corrections) - 1)], 1.0)
