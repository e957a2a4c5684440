"""Formulas of the stages: limits, identities, sums."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.energy.stages import (
    AllReduce,
    Dynamic,
    all_reduce_s,
    all_reduce_sent_bytes,
    computing_s,
    energy_by_stage_j,
    materials_s,
    stage_times,
)

TIMES = st.floats(0, 1e3)
JOULES = st.floats(0, 1e12)


@given(
    materials=TIMES,
    computing=TIMES,
    communicating=TIMES,
    overlap=st.floats(0, 1),
    prefetched=st.booleans(),
)
def test_exposed_times_add_up_to_the_step(
    materials: float, computing: float, communicating: float, overlap: float, *, prefetched: bool
) -> None:
    """Every moment belongs to one stage; no stage is exposed longer than it works."""
    times = stage_times(
        materials=materials,
        computing=computing,
        communicating=communicating,
        overlap=overlap,
        prefetched=prefetched,
    )

    assert math.fsum(times.exposed().values()) == pytest.approx(times.step_s, rel=1e-9)
    assert times.exposed_communicating <= communicating
    assert times.exposed_materials <= materials
    assert times.step_s >= max(computing, materials if prefetched else 0.0) * (1 - 1e-12)


@given(
    exposed=st.tuples(TIMES, TIMES, TIMES),
    parts=st.lists(JOULES, min_size=8, max_size=8),
    static_w=st.floats(0, 1e4),
    nodes=st.integers(1, 10_000),
)
def test_stages_add_up_to_static_and_dynamic_energy(
    exposed: tuple[float, float, float], parts: list[float], static_w: float, nodes: int
) -> None:
    """`Σ E_s = P_static N T + Σ e V`, to 1e-9: the issue's bound."""
    names = Dynamic.__slots__
    dynamic = Dynamic(**dict(zip(names, parts, strict=True)))
    stages = dict(zip(("materials", "computing", "communicating"), exposed, strict=True))
    found = energy_by_stage_j(static_w=static_w, nodes=nodes, exposed_s=stages, dynamic=dynamic)
    whole = static_w * nodes * math.fsum(exposed) + math.fsum(parts)

    assert math.fsum(found.values()) == pytest.approx(whole, rel=1e-9, abs=1e-9)


def test_one_rank_sends_nothing() -> None:
    """The formulas need no exception for a single rank."""
    assert all_reduce_s(1e9, 1, alpha_s=1e-5, bytes_per_s=1e9) == 0


@pytest.mark.parametrize(("ranks", "messages"), [(2, 2), (8, 6), (9, 8), (128, 14)])
def test_halving_needs_fewer_messages_than_a_ring(ranks: int, messages: int) -> None:
    """Two times the logarithm, rounded up, in place of 2 (N - 1); the bytes are the same."""
    halving = all_reduce_s(0, ranks, alpha_s=1.0, bytes_per_s=1.0, algorithm=AllReduce.HALVING)
    ring = all_reduce_s(0, ranks, alpha_s=1.0, bytes_per_s=1.0, algorithm=AllReduce.RING)

    assert (halving, ring) == (messages, 2 * (ranks - 1))
    assert all_reduce_sent_bytes(8.0, ranks) == pytest.approx(16 * (ranks - 1) / ranks)


def test_a_batch_of_b_half_computes_at_half_the_speed() -> None:
    """That is what b½ means."""
    at_half = computing_s(
        flop=1e12,
        memory_bytes=0,
        samples=6,
        overhead_s=0,
        s_per_flop=1e-12,
        half_batch=6,
        s_per_byte=0,
    )

    assert at_half == pytest.approx(2.0)


def test_a_pipelined_loader_takes_as_long_as_its_slowest_part() -> None:
    """And the sum of all where each waits for the one before."""
    parts = {"reading": 1.0, "preparing": 3.0, "copying": 0.5}

    assert materials_s(**parts, pipelined=True) == 3.0
    assert materials_s(**parts, pipelined=False) == 4.5
