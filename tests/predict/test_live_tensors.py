"""The live tensors at the peak add up to it, whatever the strategy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, mixture
from wattree.accounts.breakdown import tasks_of
from wattree.accounts.live import live_tensors
from wattree.accounts.reserved import reserved_for
from wattree.sim import execute
from wattree.sim.allocator import ALLOCATORS
from wattree.strategy import (
    CONTEXTS,
    RECOMPUTATIONS,
    SHARDINGS,
    ExpertLoad,
    Schedule,
    StrategyOptions,
    Traffic,
)
from wattree.strategy.schedules import PIPELINE_SCHEDULES
from wattree.trace import LiveTensors

STAGES = 2
#: Schedules whose stages exchange gradients with those as far from the other end.
MIRRORED = frozenset(
    name for name in PIPELINE_SCHEDULES if Schedule(name=name).placed(STAGES).copies > 1
)


def chunks_of(schedule: str) -> int:
    """Return the number of chunks per stage that a schedule needs, if it needs one."""
    return 2 if schedule in {"interleaved", "breadth-first"} else 1


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a small job: any schedule, sharding, recomputation, tensor and expert parallelism."""
    schedule = draw(st.sampled_from(sorted(PIPELINE_SCHEDULES)))
    sharding = draw(st.sampled_from(SHARDINGS))
    tp = draw(st.sampled_from([1, 2]))
    family = draw(st.sampled_from(["megatron-core", "torchtitan", "megatron-lm-2021"]))
    unfused = family == "megatron-lm-2021"
    model = draw(st.sampled_from([dense(4, dropout=0.1), mixture(4)]))
    experts = (
        2 if any("experts" in o.path for b in model.blocks.values() for o in b.operators) else 1
    )
    early = draw(st.booleans()) and schedule not in MIRRORED
    options = StrategyOptions(
        pp=STAGES,
        tp=tp,
        cp=draw(st.sampled_from([1, 2])),
        ep=experts,
        context=draw(st.sampled_from([c for c in CONTEXTS if not (unfused and c == "ring")])),
        context_order=draw(st.sampled_from(["zigzag", "contiguous"])),
        expert_load=draw(st.sampled_from([None, ExpertLoad(imbalance=1.5)])),
        reduce_every_micro_batch=draw(st.sampled_from([None, True, False])),
        tensor_pieces=draw(st.sampled_from([None, 2])),
        traffic=Traffic(
            in_line=tuple(draw(st.sets(st.sampled_from(["tensor", "context", "experts"])))),
            overlap_optimizer=early,
        ),
        fsdp=2 if sharding == "hybrid" else draw(st.sampled_from([1, 2])),
        schedule=schedule,
        virtual_stages=chunks_of(schedule),
        sharding=sharding,
        sequence_parallel=draw(st.booleans()) and tp > 1,
        recompute=draw(st.sampled_from([*RECOMPUTATIONS, "block_2"])),
        overlap_gradients=draw(st.booleans()),
        overlap_parameters=draw(st.booleans()),
    )
    return Job.of(model, options, global_batch=draw(st.sampled_from([8, 16])), family=family)


@settings(max_examples=40)
@given(job=jobs(), detail=st.booleans())
def test_what_is_alive_adds_up_to_the_peak_of_every_class(job: Job, *, detail: bool) -> None:
    """Tensor by tensor, to rounding; and nothing is owed."""
    compiled = job.compiled(detail=detail)
    trace = execute(compiled.graph)

    for rank_class, peak_bytes in enumerate(trace.peak_bytes):
        live = live_tensors(trace, compiled.ledger, rank_class)
        assert sum(row.bytes for row in live) == pytest.approx(peak_bytes, rel=1e-9)
        assert min(row.bytes for row in live) > 0
        assert min(row.tensors for row in live) >= 1
        if detail:
            assert all(row.tensors >= (row.micro_batches or 1) for row in live)


@settings(max_examples=25)
@given(job=jobs(), detail=st.booleans())
def test_a_ledger_holds_every_byte_that_tasks_take_and_give(job: Job, *, detail: bool) -> None:
    """Task by task, so that memory that is added to a task without a name is found."""
    compiled = job.compiled(detail=detail)
    graph = compiled.graph
    trace = execute(graph)
    for rank_class, stage in enumerate(compiled.ledger.stage_of_class.tolist()):
        tasks = tasks_of(trace, rank_class)
        taken, given_back = np.zeros(len(tasks)), np.zeros(len(tasks))
        for piece in compiled.ledger.stages[stage].pieces:
            lines = piece.ledger
            rows = lines["task"] if piece.rows is None else piece.rows[lines["task"]]
            at_end = lines["at_end"]
            rows = rows + piece.offset
            np.add.at(taken, rows[~at_end], lines["bytes"][~at_end])
            np.add.at(given_back, rows[at_end], -lines["bytes"][at_end])
        scale = max(graph.alloc_bytes[tasks].max(), 1.0)
        assert np.allclose(taken, graph.alloc_bytes[tasks], rtol=0, atol=1e-9 * scale)
        assert np.allclose(given_back, graph.free_bytes[tasks], rtol=0, atol=1e-9 * scale)


@settings(max_examples=5)
@given(job=jobs())
def test_every_rank_of_a_class_holds_what_the_class_holds(job: Job) -> None:
    """Folding changes no list: tensor by tensor, on the first rank of every stage."""
    lists = []
    for fold in (True, False):
        compiled = job.compiled(fold=fold)
        trace = execute(compiled.graph)
        stages = compiled.ledger.stage_of_class
        first = [int(np.flatnonzero(stages == stage)[0]) for stage in range(STAGES)]
        lists.append([live_tensors(trace, compiled.ledger, rank_class) for rank_class in first])

    for folded, unfolded in zip(*lists, strict=True):
        found, expected = (
            {row[:4]: row[4:] for row in map(_as_row, rows)} for rows in (unfolded, folded)
        )
        assert found.keys() == expected.keys()
        for name, numbers in expected.items():
            assert found[name] == pytest.approx(numbers, rel=1e-9)


def _as_row(row: LiveTensors) -> tuple[object, ...]:
    return row.category, row.kind, row.block, row.name, row.tensors, row.bytes


@settings(max_examples=5)
@given(job=jobs(), name=st.sampled_from(sorted(ALLOCATORS)))
def test_an_allocator_gets_every_tensor_back(job: Job, name: str) -> None:
    """What it played peaks where the executor's memory did, and it holds at least that."""
    compiled = job.compiled()
    trace = execute(compiled.graph)

    for rank_class, peak_bytes in enumerate(trace.peak_bytes):
        use = reserved_for(trace, compiled.ledger, rank_class, name)
        assert use.complete
        assert use.tensor_bytes == pytest.approx(peak_bytes, rel=0.02)  # ties at one instant
        assert use.tensor_bytes <= use.allocated_bytes <= use.reserved_bytes
