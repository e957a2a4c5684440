"""Compiled schedules against their orders played by hand: time, memory, work, transfers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from tests.compiler.test_pipeline import free_links, layers_only, step_s
from tests.strategy.abstract_execution import execute
from tests.strategy.memory_bounds import MOST_LIVE
from wattree.accounts.breakdown import time_parts
from wattree.compiler import Compilation
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.lowering.split import deferred_instructions
from wattree.sim import execute as simulate
from wattree.strategy import Schedule, StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES, SlotWork, read_slot

SPLIT = tuple(name for name, known in PIPELINE_SCHEDULES.items() if known.splits_backward)
FOLDED = ("zb-v", "dualpipev")
BYTES_OF_A_GRADIENT = 2.0  # as NeMo has it


def piped(name: str, stages: int, micro_batches: int, *, layers: int = 1, **job: object) -> Job:
    """Return equal layers, `layers` on each chunk, links free, always on the same node."""
    chunks = Schedule(name=name).placed(stages).model_chunks
    return Job.of(
        layers_only(layers * chunks),
        StrategyOptions(pp=stages, schedule=name),
        cluster=small_cluster(24, per_node=24),
        global_batch=micro_batches,
        rates=free_links(),
        **job,
    )


def times_of(compiled: Compilation) -> dict[SlotWork, float]:
    """Return what a layer's forward, input gradient and weight gradient take. [s]"""
    costs = compiled.costs[-1]  # the first one hands no gradient on, which costs the same
    late = [
        index in deferred_instructions(costs.backward.instructions)
        for index in range(len(costs.backward.instructions))
    ]
    seconds = costs.backward.work_s[:, 0]
    weight, whole = float(seconds[late].sum()), float(seconds.sum())
    return {
        SlotWork.FORWARD: float(costs.forward.work_s[:, 0].sum()),
        SlotWork.BACKWARD: whole,
        SlotWork.INPUT_GRADIENT: whole - weight,
        SlotWork.WEIGHT_GRADIENT: weight,
    }


def rest_s(chunks: int) -> float:
    """Return what a step of a rank with so many layers takes besides its passes."""
    one, two = (step_s(StrategyOptions(), chunks, m) for m in (1, 2))
    return 2 * one - two


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
@settings(max_examples=6)
@given(half=st.integers(1, 3), micro_batches=st.integers(1, 14))
def test_a_compiled_schedule_takes_what_its_order_takes(
    name: str, half: int, micro_batches: int
) -> None:
    """Another player, that knows neither tasks nor streams, ends at the same time."""
    stages = 2 * half
    compiled = piped(name, stages, micro_batches).compiled()
    schedule = Schedule(name=name, micro_batches=micro_batches)
    placement = schedule.placed(stages)

    executed = execute(schedule.orders(stages), placement, times_of(compiled))

    expected = executed.makespan + rest_s(placement.chunks)
    assert simulate(compiled.graph).makespan_s == pytest.approx(expected, rel=1e-9)


def peaks(name: str, stages: int, micro_batches: int) -> np.ndarray:
    """Return the peak of each stage beyond what it holds all the time. [B]"""
    graph = piped(name, stages, micro_batches).compiled().graph
    return simulate(graph).peak_bytes - graph.static_bytes


@pytest.mark.parametrize("name", SPLIT)
def test_memory_follows_the_micro_batches_alive(name: str) -> None:
    """Each one more that a stage keeps adds one layer's activations, as under GPipe."""
    stages, micro_batches = 4, 12
    alive = MOST_LIVE[name](0, stages, 2, micro_batches)
    one = peaks("gpipe", stages, 5)[0] - peaks("gpipe", stages, 4)[0]
    working = peaks("gpipe", stages, 4)[0] - 4 * one

    found = peaks(name, stages, micro_batches)[0]

    # A split backward also keeps the gradients with which its weight products wait.
    assert alive * one <= found <= (alive + 1) * one + 2 * working


def test_zb_h1_is_faster_than_1f1b_and_keeps_about_as_much() -> None:
    """The promise of its paper, on the stage that keeps most."""
    fast, slow = (piped(n, 4, 12).compiled().graph for n in ("zb-h1", "1f1b"))

    assert simulate(fast).makespan_s < simulate(slow).makespan_s
    assert peaks("zb-h1", 4, 12).max() == pytest.approx(peaks("1f1b", 4, 12).max(), rel=0.02)


def balance(graph: ExecutionGraph) -> float:
    """Return what is taken and never given back. [B]"""
    return float(graph.alloc_bytes.sum() - graph.free_bytes.sum())


MODES = {
    "plain": StrategyOptions(pp=2),
    "sequence parallel": StrategyOptions(pp=2, tp=2, sequence_parallel=True),
    "recomputed": StrategyOptions(pp=2, recompute="full"),
    "half recomputed": StrategyOptions(pp=2, recompute="selective_operator"),
    "sharded": StrategyOptions(pp=2, dp=2, sharding="zero3"),
    "gradients sharded": StrategyOptions(pp=2, dp=2, sharding="zero2"),
}


@pytest.mark.parametrize("name", SPLIT)
@pytest.mark.parametrize("mode", MODES)
def test_all_memory_is_given_back(name: str, mode: str) -> None:
    """What waits for the weight gradient goes with it, and nothing goes twice."""
    graph = Job.of(dense(4), replace(MODES[mode], schedule=name)).compiled().graph

    assert balance(graph) == pytest.approx(0.0, abs=1e-6 * graph.alloc_bytes.sum())


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
@pytest.mark.parametrize("mode", MODES)
def test_merged_runs_change_no_time(name: str, mode: str) -> None:
    """A step with a task per operator takes as long as one with runs merged."""
    job = Job.of(mixture(4), replace(MODES[mode], schedule=name))

    full, short = (simulate(job.compiled(detail=d).graph).makespan_s for d in (True, False))

    assert short == pytest.approx(full, rel=1e-9)


@pytest.mark.parametrize("name", SPLIT)
def test_folding_changes_no_time(name: str) -> None:
    """Ranks of the two directions are distinguished, replicas are not."""
    options = StrategyOptions(pp=4, dp=2, schedule=name)
    job = Job.of(dense(8), options, cluster=small_cluster(8, per_node=2))

    folded, every = (simulate(job.compiled(fold=f).graph).makespan_s for f in (True, False))

    assert folded == pytest.approx(every, rel=1e-9)


@pytest.mark.parametrize("name", PIPELINE_SCHEDULES)
def test_a_schedule_does_the_work_of_one_device(name: str) -> None:
    """Cutting the backward in two neither adds nor loses a product."""

    def flop(options: StrategyOptions) -> float:
        graph = Job.of(dense(8), options).compiled().graph
        owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
        return float((graph.flop * graph.class_ranks[owner]).sum())

    found = flop(StrategyOptions(pp=4, schedule=name))

    assert found == pytest.approx(flop(StrategyOptions()), rel=1e-12)


@pytest.mark.parametrize("name", FOLDED)
def test_the_turn_of_a_v_needs_no_transfer(name: str) -> None:
    """Of 2p - 1 hand-overs, the one at the last stage stays there."""
    stages, micro_batches = 4, 10
    graph = piped(name, stages, micro_batches).compiled().graph

    assert (graph.kind == TaskKind.TRANSFER).sum() == 2 * 2 * (stages - 1) * micro_batches


def test_dualpipe_holds_the_parameters_twice_and_exchanges_their_gradients() -> None:
    """Each rank's two chunks are its mirror's too, so every rank sends all its gradients once."""
    once, twice = (
        Job.of(
            layers_only(4),
            StrategyOptions(pp=4, schedule=name),
            traits={"placeholder_gradients": False},
        )
        .compiled()
        .graph
        for name in ("1f1b", "dualpipe")
    )
    exchange = twice.name_ids == twice.names.index("gradients.mirror")
    layer_parameters = once.static_by_category[0, once.category_names.index("parameters")] / 2.0

    assert twice.static_bytes == pytest.approx(2 * once.static_bytes)
    assert exchange.sum() == 4
    assert twice.link_traffic_bytes[exchange] == pytest.approx(
        2 * layer_parameters * BYTES_OF_A_GRADIENT
    )


def test_the_update_waits_for_the_gradients_of_the_other_copy() -> None:
    """An optimizer that did not would train two models."""
    graph = Job.of(layers_only(4), StrategyOptions(pp=4, schedule="dualpipe")).compiled().graph
    trace = simulate(graph)
    exchange = graph.name_ids == graph.names.index("gradients.mirror")
    update = graph.name_ids == graph.names.index("optimizer")

    # Stages are listed in order and hold equal chunks: mirror stages end together.
    assert np.all(trace.start_s[update] >= trace.end_s[exchange][::-1])


def test_side_by_side_hides_exchanges_of_experts() -> None:
    """What DualPipe is for: one direction computes while the other's tokens are under way."""
    options = StrategyOptions(pp=2, ep=4, schedule="dualpipev")
    job = Job.of(
        mixture(8, hidden=2048, ffn=1024),
        options,
        cluster=small_cluster(8, per_node=1),
        global_batch=64,
        sequence=4096,
    )
    order = job.strategy.schedule.orders(2)
    in_turn = tuple(tuple(slot.alone for slot in stage) for stage in order)
    schedule = replace(job.strategy.schedule, name="custom", placement="folded", order=in_turn)
    other = replace(job, strategy=replace(job.strategy, schedule=schedule))

    beside, alone = (simulate(j.compiled().graph) for j in (job, other))
    exposed_s = [time_parts(trace, 0).exposed_communication for trace in (beside, alone)]

    assert beside.makespan_s < alone.makespan_s
    assert exposed_s[0] < 0.6 * exposed_s[1]  # the pairs hide theirs, warm-up and end do not


def custom(*orders: str, micro_batches: int = 4, **schedule: object) -> Schedule:
    """Return a schedule from orders as a job file spells them."""
    slots = tuple(tuple(read_slot(piece) for piece in order.split()) for order in orders)
    return Schedule(name="custom", micro_batches=micro_batches, order=slots, **schedule)  # type: ignore[arg-type]


def test_an_order_of_ones_own_runs_like_the_schedule_it_spells() -> None:
    """1F1B written out by hand compiles to the graph of 1F1B."""
    job = Job.of(dense(4), StrategyOptions(pp=2), global_batch=4)
    order = custom("F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3")
    own = replace(job, strategy=replace(job.strategy, schedule=order))

    expected, found = (simulate(j.compiled().graph) for j in (job, own))

    assert np.array_equal(found.end_s, expected.end_s)


def test_an_order_that_deadlocks_is_refused_before_anything_is_compiled() -> None:
    """One message, with stage, chunk and micro-batch."""
    job = Job.of(dense(4), StrategyOptions(pp=2), global_batch=2)
    order = custom("F0 B0 F1 B1", "F0 F1 B0 B1", micro_batches=2)
    own = replace(job, strategy=replace(job.strategy, schedule=order))

    with pytest.raises(StrategyError) as caught:
        own.compiled()

    assert caught.value.misfits["strategy.schedule.order"].startswith(
        "stage 0, chunk 0, micro-batch 0, backward: waits for ever for stage 1, chunk 0, "
        "micro-batch 0, backward, which stands behind stage 1, chunk 0, micro-batch 1, forward"
    )
