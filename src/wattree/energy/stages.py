"""Time and energy of the three stages of a data-parallel step. Pure functions.

The stages (materials preprocessing, computing, communicating) and that a model is built from
what a data-parallel step does are those of MC² [1]. **The formulas are a reconstruction**: of
[1] the abstract alone could be read, no equation, symbol or fitted value. Each function says what
its form rests on.

References:
    [1] Wei Jia, Zhang Xingjun, Wang Longxiang, Zhao Mingqiang, Dong Xiaoshe, "MC² Energy
        Consumption Model for Massively Distributed Data Parallel Training of Deep Neural
        Network", Journal of Computer Research and Development 61(12): 2985-3004, 2024,
        doi:10.7544/issn1000-1239.202330164.
    [2] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations
        in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

from wattree.graph.volume import volume_factor

#: Backward's share of computing: gradients of weights and of inputs for one forward pass.
BACKWARD_SHARE = 2.0 / 3.0


class AllReduce(StrEnum):
    """Algorithms that sum gradients: a ring, or recursive halving and doubling."""

    RING = "ring"
    HALVING = "halving"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of the stages in one step. [s]

    Attributes:
        materials, computing, communicating: How long the work of each takes on a node.
        exposed_materials, exposed_communicating: What of it the step waits for.
    """

    materials: float
    computing: float
    communicating: float
    exposed_materials: float
    exposed_communicating: float

    @property
    def step_s(self) -> float:
        """Time of the step: the sum of the exposed times. [s]"""
        return self.computing + self.exposed_communicating + self.exposed_materials

    def exposed(self) -> dict[str, float]:
        """Return stage → its exposed time in the step. [s]"""
        return {
            "materials": self.exposed_materials,
            "computing": self.computing,
            "communicating": self.exposed_communicating,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """Energy above idle, by source. [J]

    Attributes:
        reading: `e_io V_io`.
        preparing: `e_prep core_s`, or by samples.
        copying: `e_h2d V_h2d`.
        arithmetic: `e_flop F`.
        memory: `e_mem V_mem`.
        busy: Clocks and cores that are awake while computing: `P_busy N t_C`.
        sending: `e_net V_net`.
        polling: Cores that wait in a collective: `P_poll N t_X`.
    """

    reading: float = 0.0
    preparing: float = 0.0
    copying: float = 0.0
    arithmetic: float = 0.0
    memory: float = 0.0
    busy: float = 0.0
    sending: float = 0.0
    polling: float = 0.0

    def by_stage(self) -> dict[str, float]:
        """Return stage → energy above idle. [J]"""
        return {
            "materials": self.reading + self.preparing + self.copying,
            "computing": self.arithmetic + self.memory + self.busy,
            "communicating": self.sending + self.polling,
        }


def materials_s(*, reading: float, preparing: float, copying: float, pipelined: bool) -> float:
    """Return the time of the input pipeline: `t_M = max(t_io, t_cpu, t_h2d)`, the sum if not
    pipelined. [s]

    Args:
        reading: `t_io = V_file b / min(BW_node, BW_fs / N)`; 0 where pages are cached. [s]
        preparing: `t_cpu = b c_prep / min(workers, cores)`. [s]
        copying: `t_h2d = V_tensor b / BW_h2d`; 0 on nodes without accelerators. [s]
        pipelined: The three run alongside each other.
    """  # noqa: D205 - one sentence
    parts = (reading, preparing, copying)
    return max(parts) if pipelined else sum(parts)


def computing_s(
    *,
    flop: float,
    memory_bytes: float,
    samples: float,
    overhead_s: float,
    s_per_flop: float,
    half_batch: float,
    s_per_byte: float,
) -> float:
    """Return the time of forward, backward and update on one rank. [s]

    `t_C = a0 + F / (R_peak η(b)) + κ V_mem`, `η(b) = η∞ b / (b + b½)`: an efficiency that
    saturates with the batch, a launch overhead and memory traffic. `s_per_flop` is
    `1 / (R_peak η∞)`, the two of which no run can tell apart.

    Args:
        flop: Of one rank. [FLOP]
        memory_bytes: Of one rank. [B]
        samples: Of one rank, `b`.
        overhead_s: `a0`. [s]
        s_per_flop: At an endless batch. [s/FLOP]
        half_batch: `b½`, at which half of it is reached.
        s_per_byte: `κ`, memory traffic that arithmetic does not hide. [s/B]
    """
    batch_factor = 1.0 + half_batch / samples if samples > 0 else 1.0
    return overhead_s + s_per_flop * flop * batch_factor + s_per_byte * memory_bytes


def all_reduce_s(
    size_bytes: float,
    ranks: int,
    *,
    alpha_s: float,
    bytes_per_s: float,
    algorithm: AllReduce = AllReduce.RING,
) -> float:
    """Return the time of an all-reduce (Hockney's model, [2]). [s]

    Ring: `2(N-1) α + 2 (N-1)/N G / β`; halving and doubling: `2 ⌈log₂ N⌉ α + …`. The additions,
    `(N-1)/N G / ρ`, are in the same ratio to the bytes for every size and N, so that no sweep of
    all-reduces tells ρ from β: `1 / bytes_per_s` is `1/β + 1/(2ρ)`.

    Args:
        size_bytes: `G`. [B]
        ranks: `N`.
        alpha_s: `α`. [s]
    """
    steps = latency_steps(ranks, algorithm)
    return steps * alpha_s + all_reduce_sent_bytes(size_bytes, ranks) / bytes_per_s


def latency_steps(ranks: int, algorithm: AllReduce) -> int:
    """Return the number of sequential messages in an all-reduce of small size."""
    if ranks <= 1:
        return 0
    return 2 * (ranks - 1) if algorithm is AllReduce.RING else 2 * ceil(log2(ranks))


def all_reduce_sent_bytes(size_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank sends: `2 (N-1)/N G`, the least possible [2]. [B]"""
    return volume_factor("all_reduce", ranks) * size_bytes


def exposed_materials_s(materials: float, step: float, *, prefetched: bool) -> float:
    """Return the exposed data wait: `max(0, t_M - t_step)` with prefetch, else `t_M`. [s]"""
    return max(0.0, materials - step) if prefetched else materials


def exposed_communicating_s(communicating: float, computing: float, overlap: float) -> float:
    """Return the exposed gradient wait: `max(0, t_X - φ t_bwd)`. [s]

    Args:
        communicating: `t_X`. [s]
        computing: `t_C`, of which backward is two thirds. [s]
        overlap: `φ`, the part of backward behind which buckets travel; 0 if gradients are summed
            after it.
    """
    return max(0.0, communicating - overlap * BACKWARD_SHARE * computing)


def stage_times(
    *,
    materials: float,
    computing: float,
    communicating: float,
    overlap: float,
    prefetched: bool = True,
) -> StageTimes:
    """Return how the stages of a step overlap. Arguments as above. [s]"""
    waits = exposed_communicating_s(communicating, computing, overlap)
    starves = exposed_materials_s(materials, computing + waits, prefetched=prefetched)
    return StageTimes(
        materials=materials,
        computing=computing,
        communicating=communicating,
        exposed_materials=starves,
        exposed_communicating=waits,
    )


def energy_by_stage_j(
    *, static_w: float, nodes: int, exposed_s: Mapping[str, float], dynamic: Dynamic
) -> dict[str, float]:
    """Return stage → energy; the sum is `P_static N T + Σ e V`. [J]

    Static power follows wall time and belongs to the stage that is exposed; dynamic energy
    follows work done. So the split stays true where stages overlap.

    Args:
        static_w: Of one node at rest. [W]
        nodes: `N`.
        exposed_s: Stage → what of the run is that stage's; adds up to its length. [s]
        dynamic: Of all nodes. [J]
    """
    above = dynamic.by_stage()
    return {stage: static_w * nodes * exposed_s.get(stage, 0.0) + above[stage] for stage in above}
