"""Nothing hangs: a graph that comes to a halt is refused, and the message says who is stuck.

Faults are injected in two ways: graphs that really wait for themselves, and values that the check
of graphs lets through because they are finite, or that reach the executors past that check.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim import reference
from tests.sim.reference import execute_reference
from tests.strategies import TaskSpec, execution_graphs, graph_of
from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import engine, execute
from wattree.sim.rules import SHARING_POLICIES
from wattree.trace import Trace

COLLECTIVE, COMPUTE, TRANSFER = TaskKind.COLLECTIVE, TaskKind.COMPUTE, TaskKind.TRANSFER

Player = Callable[..., Trace]
both = pytest.mark.parametrize("player", [execute, execute_reference])


def refusal(player: Player, graph: ExecutionGraph, **how: object) -> str:
    """Return what a player says of a graph that it cannot play to its end."""
    with pytest.raises(SimulationError) as caught:
        player(graph, **how)
    return str(caught.value)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values reach the executors that the check of graphs would have refused."""
    monkeypatch.setattr(engine, "check_graph", lambda _: None)
    monkeypatch.setattr(reference, "check_graph", lambda _: None)


@both
def test_cyclic_dependency_is_a_deadlock_that_names_the_cycle(player: Player) -> None:
    """The user must learn which tasks to look at."""
    graph = graph_of(
        [
            TaskSpec(streams=(0,), work_s=1.0),
            TaskSpec(streams=(1,), after=(2,)),
            TaskSpec(streams=(2,), after=(1,)),
        ],
        stream_class=(0, 0, 0),
    )

    with pytest.raises(SimulationError) as caught:
        player(graph)

    assert str(caught.value) == (
        "deadlock: 2 of 3 tasks never start: 't1' (task 1), 't2' (task 2); each of these waits for "
        "the next: 't1' (task 1) (depends on) → 't2' (task 2) (depends on) → 't1' (task 1); "
        "remove a dependency or let the streams agree on one order"
    )


@both
def test_streams_in_conflicting_order_are_a_deadlock(player: Player) -> None:
    """Task 0 is first on the stream but needs task 1, which stands behind it."""
    graph = graph_of([TaskSpec(after=(1,)), TaskSpec()])

    with pytest.raises(SimulationError, match=r"next on stream 0 of rank 0 after"):
        player(graph)


@both
def test_task_that_waits_for_itself_is_named(player: Player) -> None:
    """The shortest cycle there is."""
    said = refusal(player, graph_of([TaskSpec(), TaskSpec(after=(1,))]))

    assert "1 of 2 tasks never start: 't1' (task 1)" in said
    assert "'t1' (task 1) (depends on) → 't1' (task 1)" in said


@both
def test_collectives_that_ranks_enter_in_different_order_are_named(player: Player) -> None:
    """Rank 0 reduces before it gathers, rank 1 gathers before it reduces: the classic hang.

    Task ids order streams, so ranks disagree through what each does between the two: on rank 0
    the gather waits for the reduction, on rank 1 the reduction for the gather.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COLLECTIVE, streams=(1, 3), work_s=1.0, after=(3,)),
            TaskSpec(kind=COLLECTIVE, streams=(2, 4), work_s=1.0, after=(2,)),
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=1.0, after=(0,)),
            TaskSpec(kind=COMPUTE, streams=(5,), work_s=1.0, after=(1,)),
            TaskSpec(kind=COMPUTE, streams=(6,), work_s=1.0),
        ],
        stream_class=(0, 0, 0, 1, 1, 1, 2),
    )

    said = refusal(player, graph)

    assert "deadlock: 4 of 5 tasks never start" in said
    cycle = said.split("waits for the next: ")[1]
    assert all(f"'t{task}' (task {task})" in cycle for task in range(4))
    assert "'t4'" not in said  # the rank that takes no part has played


@both
def test_cycle_through_three_ranks_and_their_streams_is_named(player: Player) -> None:
    """Each rank receives before it sends: no dependency alone is wrong, the ring of them is."""
    tasks = [
        TaskSpec(kind=TRANSFER, streams=(rank, (rank + 1) % 3), work_s=1.0)
        if rank < 2
        else TaskSpec(kind=TRANSFER, streams=(0, 2), work_s=1.0)
        for rank in range(3)
    ]
    tasks[0] = replace(tasks[0], after=(2,))
    said = refusal(player, graph_of(tasks, stream_class=(0, 1, 2)))

    assert "deadlock: 3 of 3 tasks never start" in said
    assert "next on stream" in said
    assert "depends on" in said


@both
def test_stuck_tasks_behind_a_cycle_are_counted_but_the_cycle_alone_is_shown(
    player: Player,
) -> None:
    """A thousand victims of one cycle must not hide it."""
    graph = graph_of(
        [
            *[TaskSpec(streams=(), after=(30,)) for _ in range(30)],
            TaskSpec(streams=(), after=(31,)),
            TaskSpec(streams=(), after=(30,)),
        ],
        stream_class=(),
    )

    said = refusal(player, graph)

    assert "32 of 32 tasks never start" in said
    assert "and 20 more" in said
    cycle = said.split("waits for the next: ")[1].split(";")[0]
    assert cycle in {
        "'t30' (task 30) (depends on) → 't31' (task 31) (depends on) → 't30' (task 30)",
        "'t31' (task 31) (depends on) → 't30' (task 30) (depends on) → 't31' (task 31)",
    }


@both
def test_share_too_small_for_a_number_is_a_standstill_that_names_task_and_link(
    player: Player,
) -> None:
    """Both values are finite and above 0, and still the rate rounds to 0: it would never end."""
    graph = graph_of(
        [
            TaskSpec(kind=COLLECTIVE, streams=(0,), work_s=1.0, flow=((0, 1e308),)),
            TaskSpec(streams=(0,), work_s=1.0),
        ],
        link_bandwidth_bytes_per_s=(1e-200,),
    )

    said = refusal(player, graph)

    assert said.startswith("no progress: 1 of 2 tasks have started and never end: 't0' (task 0)")
    assert "1e+308 of 1e-200 B/s of 'link 0'" in said
    assert "1 more wait for them" in said


@both
@pytest.mark.parametrize("field", ["latency_s", "work_s"])
def test_time_beyond_what_a_number_holds_is_a_standstill(player: Player, field: str) -> None:
    """Two of 1e308 s in a row end at no finite time."""
    graph = graph_of([TaskSpec(**{field: 1e308}), TaskSpec(**{field: 1e308})])  # type: ignore[arg-type]

    said = refusal(player, graph)

    assert said.startswith("no progress: 1 of 2 tasks have started and never end: 't1' (task 1)")


@both
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bandwidth", [0.0, -1.0])
def test_link_without_bandwidth_stops_its_flows_and_nothing_hangs(
    player: Player, bandwidth: float
) -> None:
    """Refused beforehand; should one get in all the same, its flows are named."""
    graph = graph_of(
        [TaskSpec(kind=COLLECTIVE, streams=(), work_s=1.0, flow=((0, 1.0),)) for _ in range(3)],
        stream_class=(),
        link_bandwidth_bytes_per_s=(bandwidth,),
    )

    said = refusal(player, graph)

    assert "no progress: 3 of 3 tasks have started and never end: 't0' (task 0) (0 s + 1 s" in said


@both
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rate", [0.0, float("nan")])
def test_overlap_that_stops_computation_is_a_standstill(player: Player, rate: float) -> None:
    """A rate of 0 or no number at all, from a calibration gone wrong, say.

    Beside communication that ends, computation only waits; where both hold each other it is over.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=1.0),
            TaskSpec(kind=COLLECTIVE, streams=(1,), work_s=1.0),
        ],
        stream_class=(0, 0),
        compute_rate=rate,
    )

    assert player(graph).end_s.tolist() == [2.0, 1.0]
    said = refusal(player, replace(graph, communication_rate_while_computing=rate))
    assert "no progress: 2 of 2 tasks have started and never end: 't0' (task 0)" in said


@both
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("sharing", SHARING_POLICIES)
@given(
    graph=execution_graphs(),
    field=st.sampled_from(("work_s", "latency_s", "link_bandwidth_bytes_per_s")),
    fault=st.sampled_from((0.0, float("nan"), float("inf"), -1.0)),
    place=st.integers(0, 13),
    rate=st.sampled_from((0.0, float("nan"), 1.0)),
)
def test_no_fault_makes_an_executor_hang(  # noqa: PLR0917 - a fault of every kind
    player: Player,
    sharing: str,
    graph: ExecutionGraph,
    field: str,
    fault: float,
    place: int,
    rate: float,
) -> None:
    """Whatever gets in, a play ends: with a trace of finite times or with who is stuck."""
    values = getattr(graph, field).copy()
    values[place : place + 1] = fault
    faulty = replace(graph, **{field: values}, communication_rate_while_computing=rate)

    with suppress(SimulationError):  # any other error, and any hang, is a failure
        assert np.isfinite(player(faulty, sharing=sharing).end_s).all()
