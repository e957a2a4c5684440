"""Small plays whose outcome is known in closed form; both executors must give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.sim.reference import execute_reference
from tests.strategies import TaskSpec, flow, graph_of
from wattree.errors import SimulationError, UnknownNameError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import execute
from wattree.sim.engine import execute_events
from wattree.sim.rules import EVENT_KINDS, EventKind
from wattree.trace import Trace

COLLECTIVE, COMPUTE, HOST = TaskKind.COLLECTIVE, TaskKind.COMPUTE, TaskKind.HOST

Player = Callable[..., Trace]
both = pytest.mark.parametrize("player", [execute, execute_reference])


@both
def test_nothing_to_do_takes_no_time(player: Player) -> None:
    """An empty graph is a graph."""
    trace = player(graph_of([], stream_class=()))

    assert (trace.makespan_s, trace.events) == (0.0, 0)


@both
def test_flow_alone_takes_latency_and_work_exactly(player: Player) -> None:
    """`work_s` is the time when alone: no rounding by the solver may creep in."""
    graph = graph_of(
        [flow(0, 0.3, (0, 7.0), (1, 49.1), latency_s=0.1)], link_bandwidth_bytes_per_s=(7.0, 49.1)
    )

    assert player(graph).end_s.tolist() == [0.1 + 0.3]


@both
def test_flows_that_fill_a_link_exactly_do_not_slow_each_other(player: Player) -> None:
    """Three thirds may add up to more than one in floating point, yet nothing is crowded."""
    third = 0.1  # 0.1 + 0.1 + 0.1 > 0.3
    graph = graph_of(
        [flow(k, 1.0, (0, third)) for k in range(3)],
        stream_class=(0, 0, 0),
        link_bandwidth_bytes_per_s=(0.3,),
    )

    assert player(graph).end_s.tolist() == [1.0, 1.0, 1.0]


@both
@pytest.mark.parametrize("sharing", ["max-min", "proteus"])
def test_two_equal_flows_on_one_link_take_twice_as_long(player: Player, sharing: str) -> None:
    """Each has half the link."""
    graph = graph_of(
        [flow(0, 2.0, (0, 10.0)), flow(1, 2.0, (0, 10.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(10.0,),
    )

    assert player(graph, sharing=sharing).end_s.tolist() == [4.0, 4.0]


@both
def test_unequal_flows_of_one_task_grow_as_the_largest_of_them_on_its_busiest_link(
    player: Player,
) -> None:
    """Folded twins send 3 and 1 over two links, either way round, beside another flow on each."""
    apart = graph_of(
        [
            flow(0, 1.0, (0, 3.0), (1, 1.0)),
            flow(1, 1.0, (0, 1.0), (1, 3.0)),
            flow(2, 1.0, (0, 3.0)),
            flow(3, 1.0, (1, 3.0)),
        ],
        stream_class=(0, 0, 0, 0),
        link_bandwidth_bytes_per_s=(4.0, 4.0),
    )
    folded = graph_of(
        [flow(0, 1.0, (0, 4.0), counts=(2,)), flow(1, 1.0, (0, 3.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(4.0,),
    )
    folded = replace(folded, flow_largest_bytes_per_s=np.array([3.0, 3.0]))

    ends = [player(graph).end_s for graph in (apart, folded)]

    np.testing.assert_allclose(ends[0], 7 / 4)
    np.testing.assert_allclose(ends[1], 7 / 4)


@both
def test_flow_gets_the_whole_link_back_when_the_other_ends(player: Player) -> None:
    """Two share for 2 s and do 1 s of work each; then one has 3 s of work left alone."""
    graph = graph_of(
        [flow(0, 1.0, (0, 10.0)), flow(1, 4.0, (0, 10.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(10.0,),
    )

    assert player(graph).end_s.tolist() == [2.0, 5.0]


@both
def test_late_flow_slows_only_what_is_left(player: Player) -> None:
    """Alone for 1 s, then half speed for the other second of work."""
    graph = graph_of(
        [flow(0, 2.0, (0, 10.0)), flow(1, 1.0, (0, 10.0), latency_s=1.0)],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(10.0,),
    )

    assert player(graph).end_s.tolist() == [3.0, 3.0]


@both
@pytest.mark.parametrize(
    ("sharing", "ends_s"), [("max-min", [1.0, 1.5]), ("proteus", [2.0, 2.3]), ("none", [1.0, 1.3])]
)
def test_narrow_flow_is_served_in_full_by_max_min_only(
    player: Player, sharing: str, ends_s: list[float]
) -> None:
    """Max-min: 4 of 12 B/s go to the narrow flow at rate 1, the wide one has 8 of its 10.

    The wide flow does 0.8 s of work in the first second and the other 0.5 s alone. Counted, both
    run at half their speed until the narrow one ends, and 0.3 s of work are left.
    """
    graph = graph_of(
        [flow(0, 1.0, (0, 4.0)), flow(1, 1.3, (0, 10.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(12.0,),
    )

    assert player(graph, sharing=sharing).end_s.tolist() == pytest.approx(ends_s)


@both
def test_what_a_bottlenecked_flow_leaves_goes_to_others(player: Player) -> None:
    """The classic case: A crosses both links, B the narrow one, C the wide one.

    Link 0 (10 B/s) gives A and B 5 each; link 1 (20 B/s) then has 15 left for C.
    """
    graph = graph_of(
        [flow(0, 1.0, (0, 20.0), (1, 20.0)), flow(1, 1.0, (0, 20.0)), flow(2, 1.0, (1, 20.0))],
        stream_class=(0, 0, 0),
        link_bandwidth_bytes_per_s=(10.0, 20.0),
    )
    # A and B run at 1/4 throughout what matters here: C, at 3/4, ends first and frees only link 1.

    assert player(graph).end_s.tolist() == pytest.approx([4.0, 4.0, 4 / 3])


@both
def test_weights_on_several_links_are_those_of_the_busiest(player: Player) -> None:
    """Busiest-link bandwidths grow alike: a flow with 8 there and 4 here takes 1/2 per unit here.

    On link 0 (6 B/s): x / 2 + x = 6 at x = 4, so A (8 on link 1) runs at 4/8, B (4) at 4/4.
    """
    graph = graph_of(
        [flow(0, 1.0, (0, 4.0), (1, 8.0)), flow(1, 3.0, (0, 4.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(6.0, 100.0),
    )

    assert player(graph).end_s.tolist() == pytest.approx([2.0, 3.0])


@both
def test_overlap_slows_both_only_while_it_lasts(player: Player) -> None:
    """Compute at 0.8 and communication at 0.5 from 1 s on, until the compute ends.

    The compute has 2 s of work left at 1 s and ends at 3.5 s; the communication has done 1.25 s
    of its 3 s by then and takes 1.75 s more.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=3.0),
            TaskSpec(kind=COLLECTIVE, streams=(1,), latency_s=1.0, work_s=3.0),
        ],
        stream_class=(0, 0),
        compute_rate=0.8,
        communication_rate=0.5,
    )

    assert player(graph).end_s.tolist() == pytest.approx([3.5, 5.25])


@both
def test_rate_that_stays_leaves_the_end_to_the_last_bit(player: Player) -> None:
    """One of two ranks stops computing, which changes nothing while the other goes on.

    Reckoning the end anew all the same would round it: 0.3 + (1.1 - 0.3 * 0.7) / 0.7.
    """
    graph = graph_of(
        [
            TaskSpec(kind=COLLECTIVE, streams=(1, 3), work_s=1.1),
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=0.3),
            TaskSpec(kind=COMPUTE, streams=(2,), work_s=5.0),
        ],
        stream_class=(0, 0, 1, 1),
        communication_rate=0.7,
    )

    assert player(graph).end_s[0] == 1.1 / 0.7 != 0.3 + (1.1 - 0.3 * 0.7) / 0.7


@both
def test_no_overlap_across_classes_for_hosts_or_where_it_is_not_marked(player: Player) -> None:
    """Only marked communication on the same rank class interferes with compute."""
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=3.0),
            TaskSpec(kind=HOST, streams=(1,), work_s=3.0),
            TaskSpec(kind=COLLECTIVE, streams=(2,), work_s=3.0, overlaps=False),
            TaskSpec(kind=COLLECTIVE, streams=(3,), work_s=3.0),
        ],
        stream_class=(0, 0, 0, 1),
        compute_rate=0.5,
        communication_rate=0.5,
    )

    assert player(graph).end_s.tolist() == [3.0] * 4


@both
def test_collective_waits_for_all_its_streams(player: Player) -> None:
    """A collective starts when its last rank arrives and holds every rank's stream."""
    graph = graph_of(
        [
            TaskSpec(streams=(0,), work_s=1.0),
            TaskSpec(streams=(1,), work_s=2.0),
            TaskSpec(kind=COLLECTIVE, streams=(0, 1), work_s=1.0),
            TaskSpec(streams=(0,), work_s=1.0),
        ],
        stream_class=(0, 1),
    )

    assert player(graph).start_s.tolist() == [0.0, 0.0, 2.0, 3.0]


def test_simultaneous_events_are_ordered_by_priority_then_task() -> None:
    """Rule 5: ends, begins of work, starts; an empty task ends before the next one starts."""
    graph = graph_of(
        [
            TaskSpec(streams=(0,), work_s=1.0),
            TaskSpec(streams=(1,), latency_s=1.0, work_s=1.0),
            TaskSpec(streams=(2,), work_s=1.0),
            TaskSpec(streams=(0,)),
            TaskSpec(streams=(2,), work_s=1.0),
        ],
        stream_class=(0, 0, 0),
    )
    end, work, start = EventKind.END, EventKind.WORK, EventKind.START

    _, events = execute_events(graph)

    found = [(EventKind(event % EVENT_KINDS), event // EVENT_KINDS) for event in events.tolist()]
    assert found == [
        *[(start, 0), (start, 1), (start, 2)],
        *[(end, 0), (end, 2), (work, 1), (start, 3), (end, 3), (start, 4)],
        *[(end, 1), (end, 4)],
    ]


@both
def test_memory_peak_names_the_task_that_reached_it(player: Player) -> None:
    """Freed before the next starts (rule 5), and counted once per class, not per stream."""
    graph = graph_of(
        [
            TaskSpec(streams=(0, 1), work_s=1.0, alloc_bytes=6.0, free_bytes=4.0),
            TaskSpec(streams=(0,), work_s=1.0, alloc_bytes=5.0, free_bytes=5.0),
        ],
        stream_class=(0, 0, 1),
        static_bytes=(10.0, 3.0),
    )

    trace = player(graph)

    assert trace.peak_bytes.tolist() == [17.0, 3.0]
    assert trace.peak_task.tolist() == [1, -1]


@both
def test_tasks_without_a_stream_run_all_at_once(player: Player) -> None:
    """Nothing but dependencies holds them back."""
    graph = graph_of([TaskSpec(streams=(), work_s=2.0) for _ in range(5)], stream_class=())

    assert player(graph).end_s.tolist() == [2.0] * 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency_s": np.zeros(1)}, "latency_s: 1 values, expected 2"),
        ({"work_s": np.array([1.0, np.nan])}, r"work_s\[1\]: nan, expected a finite number >= 0"),
        ({"alloc_bytes": np.array([-1.0, 0.0])}, r"alloc_bytes\[0\]: -1.0, expected"),
        ({"kind": np.array([0, 9], np.int8)}, "kind: ids from 0 to 9, but there are 4 task kinds"),
        ({"stream_ids": np.array([0, 7])}, "stream_ids: ids from 0 to 7, but there are 2 streams"),
        ({"stream_offsets": np.array([0, 3, 2])}, "stream_offsets: must rise from 0 to 2"),
        (
            {"stream_ids": np.array([1, 0]), "stream_offsets": np.array([0, 2, 2])},
            "task 0: its streams must be ascending",
        ),
        ({"link_bandwidth_bytes_per_s": np.zeros(1)}, "a link without bandwidth"),
        ({"compute_rate_while_communicating": 0.0}, "expected a rate in"),
        ({"communication_rate_while_computing": np.nan}, "nan, expected a rate in"),
        ({"link_bandwidth_bytes_per_s": np.array([np.nan])}, r"s\[0\]: nan, expected a finite"),
        ({"flow_counts": np.array([-1])}, "flow_counts: -1, expected 0 or more flows"),
        ({"flow_counts": np.array([1, 1])}, "flow_counts: 2 values, expected 1"),
        (
            {"flow_largest_bytes_per_s": np.ones(2)},
            "flow_largest_bytes_per_s: 2 values, expected 1",
        ),
        ({"kind": np.array([0, 0], np.int8)}, "task 1: only collectives and transfers use links"),
    ],
)
def test_malformed_graph_is_refused(change: dict[str, object], message: str) -> None:
    """A wrong index in compiled code would read foreign memory instead of failing."""
    graph = graph_of(
        [TaskSpec(), flow(1, 1.0, (0, 1.0))],
        stream_class=(0, 0),
        link_bandwidth_bytes_per_s=(1.0,),
    )

    with pytest.raises(SimulationError, match=message):
        execute(replace(graph, **change))


def test_unknown_sharing_policy_is_refused() -> None:
    """The message lists what there is."""
    with pytest.raises(UnknownNameError, match="known: max-min, none, proteus"):
        execute(graph_of([TaskSpec()]), sharing="max_min")


def test_arrays_that_cannot_be_written_are_played_all_the_same() -> None:
    """Graphs may be read from a file that is mapped into memory."""
    graph: ExecutionGraph = graph_of([TaskSpec(work_s=1.0)])
    graph.work_s.flags.writeable = False

    assert execute(graph).makespan_s == 1.0
