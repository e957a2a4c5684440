"""What goes in comes out: bytes over links, and the time that two share with each other."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, small_cluster
from tests.property.exposure import exposure
from tests.sim.reference import _Executor
from tests.strategies import TaskSpec, execution_graphs, graph_of
from wattree.closed_form.step_model import OverlapSlowdown
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim import execute
from wattree.strategy import StrategyOptions

ROUNDING = 1e-9
COMPUTE, COLLECTIVE = TaskKind.COMPUTE, TaskKind.COLLECTIVE


class Metered(_Executor):
    """The plain executor with a meter on every link."""

    def meter(self) -> tuple[dict[int, float], float]:
        """Play; return the bytes that each link carried, and its highest load over bandwidth."""
        self.carried: dict[int, float] = defaultdict(float)
        self.highest, self.now_s = 0.0, 0.0
        self.execute()
        return dict(self.carried), self.highest

    def _handle(self, now_s: float, priority: int, task: int) -> None:
        if now_s > self.now_s:
            load: dict[int, float] = defaultdict(float)
            for number, work in self.working.items():
                for link, width in self.flows[number].links:
                    load[link] += width * work.rate
            for link, rate in load.items():
                self.carried[link] += rate * (now_s - self.now_s)
                bandwidth = self.graph.link_bandwidth_bytes_per_s[link]
                self.highest = max(self.highest, rate / bandwidth)
            self.now_s = now_s
        super()._handle(now_s, priority, task)


def bytes_by_link(graph: ExecutionGraph) -> np.ndarray:
    """Return what the tasks have to send over each link."""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    return np.bincount(
        graph.flow_links,
        weights=graph.flow_bytes_per_s * graph.work_s[task],
        minlength=len(graph.link_bandwidth_bytes_per_s),
    )


@settings(max_examples=150)
@given(graph=execution_graphs())
def test_the_load_of_every_link_integrates_to_its_bytes(graph: ExecutionGraph) -> None:
    """Whoever slows whom: what was to be sent has been sent, and never over a link's bandwidth."""
    carried, highest = Metered(graph, "max-min").meter()

    expected = bytes_by_link(graph)
    found = np.array([carried.get(link, 0.0) for link in range(len(expected))])
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert highest <= 1 + 2 * ROUNDING


@given(graph=execution_graphs())
def test_makespan_is_at_least_the_busy_time_of_every_link(graph: ExecutionGraph) -> None:
    """A link needs its bytes over its bandwidth, whatever the order."""
    needed_s = bytes_by_link(graph) / graph.link_bandwidth_bytes_per_s

    assert execute(graph).makespan_s >= needed_s.max(initial=0.0) * (1 - 2 * ROUNDING)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-v", "dualpipe"])
def test_what_stages_send_is_what_stages_receive(*, schedule: str, fold: bool) -> None:
    """Over each kind of link as many bytes come in as go out, twins counted."""
    options = StrategyOptions(
        pp=4, dp=2, schedule=schedule, virtual_stages=2 if schedule == "interleaved" else 1
    )
    job = Job.of(dense(8), options, cluster=small_cluster(8, per_node=2), global_batch=16)
    graph = job.compiled(fold=fold).graph
    names = np.array(graph.link_names)
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    sent = graph.flow_bytes_per_s * graph.work_s[task]
    transfers = graph.kind[task] == TaskKind.TRANSFER

    totals = {
        way: sent[transfers & np.char.endswith(names[graph.flow_links], way)].sum()
        for way in (" out", " in")
    }

    assert totals[" out"] > 0
    assert totals[" in"] == pytest.approx(totals[" out"], rel=ROUNDING)


seconds = st.floats(0.01, 10.0)


@given(compute_s=seconds, traffic_s=seconds, a=st.floats(0.55, 1.0), b=st.floats(0.55, 1.0))
def test_two_side_by_side_take_what_the_closed_form_says(
    compute_s: float, traffic_s: float, a: float, b: float
) -> None:
    """Each at its rate on the intersecting interval alone, the rest at full speed."""
    graph = graph_of(
        [
            TaskSpec(kind=COMPUTE, streams=(0,), work_s=compute_s),
            TaskSpec(kind=COLLECTIVE, streams=(1,), work_s=traffic_s),
        ],
        stream_class=(0, 0),
        compute_rate=a,
        communication_rate=b,
    )
    slowdown = OverlapSlowdown(a, b)
    compute, traffic = np.array([compute_s]), np.array([traffic_s])

    expected_s = max(
        compute_s + float(slowdown.lost_s(traffic)[0]),
        traffic_s + float(slowdown.waited_s(compute)[0]),
    )

    assert execute(graph).makespan_s == pytest.approx(expected_s, rel=ROUNDING)


@given(
    layers=st.integers(1, 12),
    backward_s=seconds,
    reduce_s=seconds,
    latency_s=st.floats(0.0, 1.0),
)
def test_reductions_hide_behind_the_backward_as_in_closed_form(
    layers: int, backward_s: float, reduce_s: float, latency_s: float
) -> None:
    """DDP: the last reduction ends after the backward to some layer and all reductions from there.

    `max over k of (k b + (n - k + 1) r)`: reductions run one by one, each once its layer is done.
    """
    tasks = []
    for _ in range(layers):
        after = (len(tasks),)
        tasks.append(TaskSpec(kind=COMPUTE, streams=(0,), work_s=backward_s))
        tasks.append(
            TaskSpec(
                kind=COLLECTIVE, streams=(1,), after=after, work_s=reduce_s, latency_s=latency_s
            )
        )
    graph = graph_of(tasks, stream_class=(0, 0))
    whole_s = reduce_s + latency_s

    trace, ends = execute(graph), exposure(graph)

    expected_s = max(k * backward_s + (layers - k + 1) * whole_s for k in range(1, layers + 1))
    assert trace.makespan_s == pytest.approx(expected_s, rel=ROUNDING)
    assert ends.hidden_s == pytest.approx(layers * backward_s, rel=ROUNDING)
    assert ends.exposed_s == pytest.approx(layers * (backward_s + whole_s), rel=ROUNDING)


def test_a_pair_of_bounds_frames_what_is_simulated() -> None:
    """Sharded parameters are gathered alongside computation: partly hidden, partly not."""
    options = StrategyOptions(fsdp=4, tp=2, sharding="zero3")
    graph = Job.of(dense(4), options, cluster=small_cluster(8, per_node=2)).compiled().graph
    step_s, ends = execute(graph, mutual_slowdown=False).makespan_s, exposure(graph)

    assert ends.hidden_s < step_s < ends.exposed_s
