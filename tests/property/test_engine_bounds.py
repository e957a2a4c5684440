"""What no schedule may violate, whatever the graph. Both executors are equal, so one is asked."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.reference import Flow, counted_shares, fair_shares
from tests.strategies import COMMUNICATION, execution_graphs
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import execute
from wattree.sim.engine import execute_events
from wattree.sim.policies import flows_under
from wattree.sim.rules import EVENT_KINDS
from wattree.trace import Trace

ROUNDING = 1e-9  # relative; sums of at most some dozen terms


def rows(offsets: np.ndarray, values: np.ndarray) -> list[list[int]]:
    """Return CSR rows as lists."""
    return [values[a:b].tolist() for a, b in pairwise(offsets)]


@given(graph=execution_graphs())
def test_makespan_is_at_least_the_critical_path(graph: ExecutionGraph) -> None:
    """Nothing runs faster than alone, and nothing before what it depends on."""
    finish_s = np.zeros(graph.tasks)
    earliest_s = np.zeros(graph.tasks)
    for task, followers in enumerate(rows(graph.successor_offsets, graph.successors)):
        finish_s[task] = earliest_s[task] + graph.latency_s[task] + graph.work_s[task]
        for follower in followers:
            earliest_s[follower] = max(earliest_s[follower], finish_s[task])

    trace = execute(graph)

    assert trace.makespan_s >= finish_s.max(initial=0.0) * (1 - ROUNDING)


@given(graph=execution_graphs())
def test_makespan_is_at_least_the_busy_time_of_every_stream(graph: ExecutionGraph) -> None:
    """A stream runs one task at a time."""
    busy_s = np.zeros(len(graph.stream_class))
    for task, streams in enumerate(rows(graph.stream_offsets, graph.stream_ids)):
        busy_s[streams] += graph.latency_s[task] + graph.work_s[task]

    trace = execute(graph)

    assert trace.makespan_s >= busy_s.max(initial=0.0) * (1 - ROUNDING)


@given(graph=execution_graphs())
def test_tasks_of_a_stream_run_one_by_one_in_order(graph: ExecutionGraph) -> None:
    """Rule 1: streams are queues, as in the frameworks."""
    trace = execute(graph)

    last_end_s = np.zeros(len(graph.stream_class))
    for task, streams in enumerate(rows(graph.stream_offsets, graph.stream_ids)):
        assert all(trace.start_s[task] >= last_end_s[stream] for stream in streams)
        last_end_s[streams] = trace.end_s[task]


@given(graph=execution_graphs())
def test_tasks_wait_for_their_predecessors(graph: ExecutionGraph) -> None:
    """Rule 1: dependencies hold to the bit."""
    trace = execute(graph)

    for task, followers in enumerate(rows(graph.successor_offsets, graph.successors)):
        assert (trace.start_s[followers] >= trace.end_s[task]).all()


@given(graph=execution_graphs())
def test_no_task_waits_without_a_reason(graph: ExecutionGraph) -> None:
    """Rule 1: a task starts at the very instant of the last end it waits for."""
    trace = execute(graph)

    due_s = np.zeros(graph.tasks)
    last_end_s = np.zeros(len(graph.stream_class))
    streams_of = rows(graph.stream_offsets, graph.stream_ids)
    for task, followers in enumerate(rows(graph.successor_offsets, graph.successors)):
        due_s[task] = max([due_s[task], *last_end_s[streams_of[task]]])
        last_end_s[streams_of[task]] = trace.end_s[task]
        due_s[followers] = np.maximum(due_s[followers], trace.end_s[task])
    assert trace.start_s.tolist() == due_s.tolist()


@given(graph=execution_graphs())
def test_same_graph_gives_the_identical_trace(graph: ExecutionGraph) -> None:
    """A result that changes from run to run can be neither tested nor trusted."""
    first, first_events = execute_events(graph)

    second, second_events = execute_events(graph)

    assert first_events.tolist() == second_events.tolist()
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.end_s.tobytes() == second.end_s.tobytes()


@given(graph=execution_graphs())
def test_events_are_in_order(graph: ExecutionGraph) -> None:
    """Rule 5: time never runs back, and every task starts once and ends once, in this order."""
    trace, events = execute_events(graph)

    tasks, kinds = events // EVENT_KINDS, events % EVENT_KINDS
    starts, ends = tasks[kinds == 2], tasks[kinds == 0]
    assert (np.diff(trace.start_s[starts]) >= 0).all()
    assert (np.diff(trace.end_s[ends]) >= 0).all()
    assert sorted(starts) == sorted(ends) == list(range(graph.tasks))


@given(graph=execution_graphs())
def test_slowest_rate_bounds_the_duration(graph: ExecutionGraph) -> None:
    """Where no one shares links, overlap alone slows, and never by more than its factor."""
    slowest = np.where(
        np.isin(graph.kind, COMMUNICATION),
        graph.communication_rate_while_computing,
        graph.compute_rate_while_communicating,
    )
    slowest = np.where(graph.kind == TaskKind.HOST, 1.0, slowest)

    trace = execute(graph, sharing="none")

    longest_s = graph.latency_s + graph.work_s / slowest
    # Durations are differences of times, so they round by the size of the times.
    assert (_durations(trace) <= longest_s + ROUNDING * (1 + trace.makespan_s)).all()


@given(graph=execution_graphs())
def test_whole_tasks_are_slowed_or_none_of_them(graph: ExecutionGraph) -> None:
    """Proteus: overlap costs a task its whole factor or nothing,.

    Flows are left out, so that durations are latency and work and nothing else.
    """
    alone = flows_under(graph, "none")
    rate = np.where(
        np.isin(graph.kind, COMMUNICATION),
        graph.communication_rate_while_computing,
        graph.compute_rate_while_communicating,
    )
    longer_s = graph.latency_s + graph.work_s / np.where(graph.kind == TaskKind.HOST, 1.0, rate)

    trace = execute(alone, sharing="proteus")

    took_s, rounding_s = _durations(trace), ROUNDING * (1 + trace.makespan_s)
    plain = np.abs(took_s - graph.latency_s - graph.work_s) <= rounding_s
    assert (plain | (np.abs(took_s - longer_s) <= rounding_s)).all()


@given(graph=execution_graphs())
def test_switched_off_slowdown_leaves_every_task_its_own_time(graph: ExecutionGraph) -> None:
    """Without links to share and without mutual slowdown nothing is left that slows."""
    trace = execute(graph, sharing="none", mutual_slowdown=False)

    rounding_s = ROUNDING * (1 + trace.makespan_s)
    assert (np.abs(_durations(trace) - graph.latency_s - graph.work_s) <= rounding_s).all()


@given(graph=execution_graphs())
def test_peak_is_what_the_trace_shows(graph: ExecutionGraph) -> None:
    """Rule 6: the peak is the highest level when all events are replayed in their order."""
    trace, events = execute_events(graph)

    level = graph.static_bytes.copy()
    peak = level.copy()
    streams_of = rows(graph.stream_offsets, graph.stream_ids)
    for event in events:
        task, kind = divmod(int(event), EVENT_KINDS)
        classes = np.unique(graph.stream_class[streams_of[task]])
        if kind != 1:
            level[classes] += graph.alloc_bytes[task] if kind == 2 else -graph.free_bytes[task]
            peak = np.maximum(peak, level)
    assert trace.peak_bytes.tolist() == peak.tolist()


@st.composite
def flows_and_links(draw: st.DrawFn) -> tuple[dict[int, Flow], np.ndarray]:
    """Return flows over shared links, some of which are too narrow for all."""
    bandwidths = draw(st.lists(st.floats(0.5, 50.0), min_size=1, max_size=5))
    widths = st.one_of(st.integers(1, 12).map(float), st.floats(0.01, 20.0))
    links = st.dictionaries(st.integers(0, len(bandwidths) - 1), widths, min_size=1, max_size=4)
    flows = draw(st.lists(links, min_size=1, max_size=8))
    return (
        {task: Flow(tuple(flow.items())) for task, flow in enumerate(flows)},
        np.array(bandwidths),
    )


@settings(max_examples=300)
@given(case=flows_and_links())
def test_no_link_carries_more_than_its_bandwidth(case: tuple[dict[int, Flow], np.ndarray]) -> None:
    """Rule 4: the engine's shares are these to the bit, as the differential tests show."""
    flows, bandwidths = case
    used = np.zeros(len(bandwidths))
    for task, share in fair_shares(flows, bandwidths).items():
        for link, width in flows[task].links:
            used[link] += share * width
    assert (used <= bandwidths * (1 + 2 * ROUNDING)).all()


@settings(max_examples=300)
@given(case=flows_and_links())
def test_flows_that_fit_their_links_alone_fit_together_when_counted(
    case: tuple[dict[int, Flow], np.ndarray],
) -> None:
    """Proteus: of n flows on a link each has at most the n-th part of what it has alone."""
    flows, bandwidths = case
    alone = {
        task: Flow(
            links=tuple((link, min(width, bandwidths[link])) for link, width in flow.links),
            counts=(1,) * len(flow.links),
        )
        for task, flow in flows.items()
    }
    used = np.zeros(len(bandwidths))
    for task, share in counted_shares(alone).items():
        for link, width in alone[task].links:
            used[link] += share * width
    assert (used <= bandwidths * (1 + 2 * ROUNDING)).all()


@settings(max_examples=300)
@given(case=flows_and_links())
def test_every_slowed_flow_has_a_bottleneck(case: tuple[dict[int, Flow], np.ndarray]) -> None:
    """Max-min: a flow below rate 1 has a full link on which no one's busiest link gets more.

    This is the property that defines max-min fairness (Bertsekas and Gallager, "Data Networks",
    2nd ed., 1992, section 6.5.2), whatever algorithm found the shares.
    """
    flows, bandwidths = case
    shares = fair_shares(flows, bandwidths)
    used = np.zeros(len(bandwidths))
    for task, flow in flows.items():
        for link, width in flow.links:
            used[link] += shares[task] * width

    level = {task: shares[task] * flow.busiest_bytes_per_s for task, flow in flows.items()}
    for task, flow in flows.items():
        bottlenecks = [
            link
            for link, _ in flow.links
            if used[link] >= bandwidths[link] * (1 - ROUNDING)
            and all(
                level[other] <= level[task] * (1 + ROUNDING)
                for other, rival in flows.items()
                if link in dict(rival.links)
            )
        ]
        assert shares[task] == 1.0 or bottlenecks


def _durations(trace: Trace) -> np.ndarray:
    return trace.end_s - trace.start_s
