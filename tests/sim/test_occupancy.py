"""The sweep over what ranks do, against sums that say it slowly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import TaskSpec, execution_graphs, graph_of
from wattree.accounts.breakdown import starved_span, tasks_of, time_parts
from wattree.graph import ExecutionGraph, OperatorClass, Phase, StageLabel, TaskKind
from wattree.sim import execute
from wattree.sim.drawn import Occupancy
from wattree.sim.occupancy import occupancy
from wattree.sim.sweep import CLASSES, Wait
from wattree.trace import Trace

NO_LIMIT_W = 1e300


def seen(
    trace: Trace, energy_j: np.ndarray, most_w: float = NO_LIMIT_W, **options: object
) -> Occupancy:
    """Return the sums of all classes."""
    span = starved_span(trace)
    starved = (float(span[0, 0]), float(span[0, 1])) if len(span) else (0.0, 0.0)
    limits = np.full(len(trace.graph.class_ranks), most_w)
    return occupancy(trace, energy_j, limits, starved=starved, **options)  # type: ignore[arg-type]


@st.composite
def executed(draw: st.DrawFn) -> tuple[Trace, np.ndarray]:
    """Return a random trace with phases of all kinds, and what its tasks draw."""
    graph = draw(execution_graphs())
    count = graph.tasks
    phases = draw(st.lists(st.sampled_from(list(Phase)), min_size=count, max_size=count))
    watts = draw(st.lists(st.floats(0, 700), min_size=count, max_size=count))
    changed = {f: getattr(graph, f) for f in graph.__dataclass_fields__}
    changed["phase"] = np.array(phases, dtype=np.int8)
    trace = execute(ExecutionGraph(**changed))
    return trace, np.array(watts) * (trace.end_s - trace.start_s)


@settings(max_examples=60, deadline=None)
@given(executed())
def test_without_a_limit_every_rank_draws_what_its_tasks_ask(
    given_: tuple[Trace, np.ndarray],
) -> None:
    """Each task once for each of its rank classes, however many of their streams it takes."""
    trace, energy_j = given_
    found = seen(trace, energy_j)
    asked = [energy_j[tasks_of(trace, c)].sum() for c in range(len(trace.graph.class_ranks))]

    assert found.dynamic_j.sum(axis=1) == pytest.approx(asked, rel=1e-9, abs=1e-9)
    assert found.power_j.sum(axis=1) == pytest.approx(asked, rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(executed())
def test_time_goes_where_the_breakdown_of_a_step_says(given_: tuple[Trace, np.ndarray]) -> None:
    """`time_parts` merges intervals, layer upon layer; the sweep goes from event to event."""
    trace, energy_j = given_
    found = seen(trace, energy_j)
    for rank_class in range(len(trace.graph.class_ranks)):
        parts = time_parts(trace, rank_class)
        by_stage = found.exposed_s[rank_class].reshape(len(StageLabel), CLASSES)
        close = {"rel": 1e-9, "abs": 1e-9 * max(trace.makespan_s, 1.0)}

        assert by_stage.sum() == pytest.approx(trace.makespan_s, **close)
        assert by_stage[StageLabel.COMMUNICATING].sum() == pytest.approx(
            parts.exposed_communication, **close
        )
        assert by_stage[StageLabel.MATERIALS].sum() == pytest.approx(
            parts.exposed_materials, **close
        )
        waits = found.waiting_s[rank_class]
        assert waits[[Wait.BUBBLE, Wait.STRAGGLER]].sum() == pytest.approx(parts.bubble, **close)
        assert by_stage[StageLabel.COMPUTING, OperatorClass.WAITING] == pytest.approx(
            parts.bubble, **close
        )


@settings(max_examples=60, deadline=None)
@given(executed(), st.floats(1.0, 700.0))
def test_no_rank_draws_more_than_its_limit(given_: tuple[Trace, np.ndarray], most_w: float) -> None:
    """Not on average over any part of the step, and never more than was asked."""
    trace, energy_j = given_
    spin_w = np.full(len(trace.graph.class_ranks), 50.0)
    found = seen(trace, energy_j, most_w, spin_w=spin_w)
    free = seen(trace, energy_j, spin_w=spin_w)
    width_s = trace.makespan_s / found.power_j.shape[1]

    assert (found.power_j <= most_w * width_s * (1 + 1e-6) + 1e-12).all()
    assert (found.dynamic_j <= free.dynamic_j * (1 + 1e-9) + 1e-12).all()
    assert found.dynamic_j.sum() == pytest.approx(found.power_j.sum(), rel=1e-9, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(executed(), st.floats(1.0, 100.0), st.sampled_from([120.0, NO_LIMIT_W]))
def test_spinning_is_drawn_in_waits_that_a_collective_ends_and_nowhere_else(
    given_: tuple[Trace, np.ndarray], spin_w: float, most_w: float
) -> None:
    """What it adds to waiting, to work and to power over time is one sum, of no other time."""
    trace, energy_j = given_
    classes = len(trace.graph.class_ranks)
    still = seen(trace, energy_j, most_w)
    found = seen(trace, energy_j, most_w, spin_w=np.full(classes, spin_w))
    added = found.waiting_j - still.waiting_j
    close = {"rel": 1e-9, "abs": 1e-9 * (1.0 + still.dynamic_j.sum())}
    by_class = (found.dynamic_j - still.dynamic_j).reshape(classes, -1, CLASSES)

    assert not np.delete(added, Wait.STRAGGLER, axis=1).any()
    assert (added[:, Wait.STRAGGLER] <= spin_w * found.waiting_s[:, Wait.STRAGGLER] + 1e-6).all()
    assert by_class.sum(axis=(1, 2)) == pytest.approx(added[:, Wait.STRAGGLER], **close)
    assert (found.power_j - still.power_j).sum(axis=1) == pytest.approx(
        added[:, Wait.STRAGGLER], **close
    )
    assert np.array_equal(found.waiting_s, still.waiting_s)
    assert np.array_equal(found.exposed_s, still.exposed_s)


@pytest.mark.parametrize(("kind", "spun_j"), [(TaskKind.COLLECTIVE, 80.0), (TaskKind.TRANSFER, 0)])
@pytest.mark.parametrize("most_w", [NO_LIMIT_W, 40.0, 30.0])
def test_a_rank_that_is_ready_before_others_spins_in_the_collective(
    kind: TaskKind, spun_j: float, most_w: float
) -> None:
    """By hand: ready after 1 s, the other after 3 s; 40 W for 2 s, or what the limit leaves."""
    tasks = [
        TaskSpec(kind=TaskKind.COMPUTE, streams=(0,), work_s=1.0),
        TaskSpec(kind=TaskKind.COMPUTE, streams=(1,), work_s=3.0),
        TaskSpec(kind=kind, streams=(2, 3), work_s=1.0, after=(0, 1)),
    ]
    trace = execute(graph_of(tasks, stream_class=[0, 1, 0, 1]))
    found = seen(trace, np.zeros(3), most_w, spin_w=np.full(2, 40.0))
    width_s = trace.makespan_s / found.power_j.shape[1]
    expected = spun_j * min(most_w, 40.0) / 40.0

    assert found.dynamic_j[0].sum() == pytest.approx(expected)
    assert found.dynamic_j[1].sum() == pytest.approx(0.0)
    assert found.waiting_j[0, Wait.STRAGGLER] == pytest.approx(expected)
    assert found.power_j[0, 64:192] / width_s == pytest.approx(expected / 2.0)


def test_who_is_done_before_the_step_spins_for_its_first_collective() -> None:
    """By hand: after they communicate for 1 s, one updates for 1 s and the other for 4 s."""
    tasks = [
        TaskSpec(kind=TaskKind.COLLECTIVE, streams=(2, 3), work_s=1.0),
        TaskSpec(kind=TaskKind.COMPUTE, streams=(0,), work_s=1.0, after=(0,)),
        TaskSpec(kind=TaskKind.COMPUTE, streams=(1,), work_s=4.0, after=(0,)),
    ]
    trace = execute(graph_of(tasks, stream_class=[0, 1, 0, 1]))
    found = seen(trace, np.zeros(3), spin_w=np.full(2, 40.0))

    assert found.waiting_s[:, Wait.STRAGGLER].tolist() == pytest.approx([3.0, 0.0])
    assert found.waiting_j[:, Wait.STRAGGLER].tolist() == pytest.approx([120.0, 0.0])
    assert found.dynamic_j.sum(axis=1).tolist() == pytest.approx([120.0, 0.0])
    assert found.power_j.sum(axis=1).tolist() == pytest.approx([120.0, 0.0])


@settings(max_examples=30, deadline=None)
@given(executed())
def test_classes_may_be_swept_apart(given_: tuple[Trace, np.ndarray]) -> None:
    """Each row is of one class alone."""
    trace, energy_j = given_
    whole = seen(trace, energy_j, 300.0)
    for own in range(len(trace.graph.class_ranks)):
        part = seen(trace, energy_j, 300.0, classes=np.array([own]))
        for alone, together in zip(part, whole, strict=True):
            assert np.array_equal(alone[own], together[own])
            assert not np.delete(alone, own, axis=0).any()


def test_communication_beside_computation_gets_what_is_left() -> None:
    """By hand: 500 W of computation for 2 s and 300 W alongside it for 4 s, of 600 W in all."""
    tasks = [
        TaskSpec(kind=TaskKind.COMPUTE, streams=(0,), work_s=2.0),
        TaskSpec(kind=TaskKind.COLLECTIVE, streams=(1,), work_s=4.0),
    ]
    trace = execute(graph_of(tasks, stream_class=[0, 0]))
    found = seen(trace, np.array([1000.0, 1200.0]), 600.0)

    assert found.power_j.sum() == pytest.approx(2 * 600.0 + 2 * 300.0)
    assert found.waiting_s[0].tolist() == pytest.approx([0, 0, 2.0, 0])
    assert found.waiting_j[0].tolist() == pytest.approx([0, 0, 600.0, 0])


@pytest.mark.parametrize(
    ("kind", "wait"), [(TaskKind.COLLECTIVE, Wait.STRAGGLER), (TaskKind.TRANSFER, Wait.BUBBLE)]
)
def test_what_ends_a_wait_tells_what_it_was_for(kind: TaskKind, wait: Wait) -> None:
    """One rank is ready after 1 s, the other after 3 s; then they communicate."""
    tasks = [
        TaskSpec(kind=TaskKind.COMPUTE, streams=(0,), work_s=1.0),
        TaskSpec(kind=TaskKind.COMPUTE, streams=(1,), work_s=3.0),
        TaskSpec(kind=kind, streams=(2, 3), work_s=1.0, after=(0, 1)),
    ]
    trace = execute(graph_of(tasks, stream_class=[0, 1, 0, 1]))
    found = seen(trace, np.zeros(3))

    assert found.waiting_s[0, wait] == pytest.approx(2.0)
    assert found.waiting_s[1, [Wait.BUBBLE, Wait.STRAGGLER]].sum() == pytest.approx(0.0)
