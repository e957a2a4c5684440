"""Several jobs on one fabric: who shares what, by hand, folded and whole, engine and reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, small_cluster
from tests.compiler.test_links import SLOW_BYTES_PER_S, oversubscribed, shared_adapters
from tests.sim.reference import reference_events
from wattree.compiler import compile_jobs, link_kind
from wattree.cost import load_calibration
from wattree.cost.rates import rates_of
from wattree.errors import StrategyError
from wattree.graph import (
    ExecutionGraph,
    JobTasks,
    Repeated,
    TaskKind,
    part_of,
    repeated,
    with_links_apart,
)
from wattree.hardware import Cluster, Precision
from wattree.lowering import PlacedJob
from wattree.sim import execute
from wattree.sim.engine import execute_events
from wattree.strategy import StrategyOptions
from wattree.trace import Trace

RELATIVE = 1e-12


def placed(job: Job, devices: Sequence[int], label: str = "") -> PlacedJob:
    """Return a job on devices of its cluster."""
    rates = rates_of(job.cluster, job.software, Precision.BF16, load_calibration())
    return PlacedJob(
        model=job.model,
        strategy=job.strategy,
        rates=rates,
        software=job.software,
        optimizer=job.optimizer,
        sequence=job.sequence,
        global_batch=job.global_batch,
        devices=np.array(devices),
        label=label,
    )


def together(
    cluster: Cluster, *jobs: tuple[Job, Sequence[int]], fold: bool = True
) -> tuple[ExecutionGraph, tuple[JobTasks, ...]]:
    """Compile jobs, each with its devices."""
    named = [placed(job, devices, f"job {k}: ") for k, (job, devices) in enumerate(jobs)]
    return compile_jobs(named, cluster, fold=fold)


def alone(cluster: Cluster, job: Job, devices: Sequence[int]) -> Trace:
    """Play one job without the others."""
    return execute(together(cluster, (job, devices))[0])


def ends_s(trace: Trace, jobs: Sequence[JobTasks]) -> list[float]:
    """Return when each job's step ends. [s]"""
    return [float(trace.end_s[job.tasks].max()) for job in jobs]


def replicas(cluster: Cluster, ranks: int = 8) -> Job:
    """Return a data-parallel job that reduces its gradients at the end, by itself."""
    options = StrategyOptions(dp=ranks, overlap_gradients=False)
    return Job.of(dense(2), options, cluster=cluster)


def on_nodes(nodes: Sequence[int], per_node: int = 2) -> list[int]:
    """Return the devices of nodes."""
    return [node * per_node + device for node in nodes for device in range(per_node)]


def test_two_equal_jobs_on_two_to_one_leaves_get_half_each() -> None:
    """By hand: alone, a job's two ranks on a leaf fill its uplinks; two jobs take turns.

    A ring over nodes of two ranks sends half of its volume from each rank's adapter, at `bw`. The
    leaf of two nodes has four adapters and half of their rate upwards, `2 bw`. The two ranks that
    a job has there ask for `2 bw` together, so alongside an equal job it gets half.
    """
    cluster = oversubscribed(8, leaf_nodes=2, factor=2.0, kind="fat-tree")
    job = replicas(cluster)
    graph, _ = together(cluster, (job, on_nodes([0, 2, 4, 6])), (job, on_nodes([1, 3, 5, 7])))
    trace = execute(graph)

    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    is_uplink = np.array([link_kind(name) == "uplink" for name in graph.link_names])
    over = np.unique(task[is_uplink[graph.flow_links]])
    lasts_s = (trace.end_s - trace.start_s - graph.latency_s)[over]
    rate = rates_of(cluster, job.software, Precision.BF16, load_calibration()).links
    sent = graph.link_traffic_bytes[over]
    hand_s = 2 * sent / 2 / rate.adapter_bytes_per_s

    assert is_uplink.sum() == 1
    assert rate.adapter_bytes_per_s < SLOW_BYTES_PER_S
    assert len(over) >= 2
    assert lasts_s == pytest.approx(hand_s, rel=1e-9)
    apart = alone(cluster, job, on_nodes([0, 2, 4, 6]))
    assert trace.makespan_s - apart.makespan_s == pytest.approx(hand_s.sum() / 2 / 2, rel=1e-6)


@pytest.mark.parametrize("kind", ["fat-tree", "rail-optimised", "dragonfly"])
def test_packed_jobs_are_each_alone(kind: str) -> None:
    """Leaves of their own: nothing is shared, and every task ends when it would."""
    cluster = oversubscribed(8, leaf_nodes=2, factor=4.0, kind=kind)
    one = Job.of(dense(2), StrategyOptions(dp=2, tp=2, pp=2), cluster=cluster)
    other = replicas(cluster)
    graph, jobs = together(cluster, (one, range(8)), (other, range(8, 16)))
    trace = execute(graph)

    for number, (job, devices) in enumerate(((one, range(8)), (other, range(8, 16)))):
        apart = alone(cluster, job, devices)
        there = trace.end_s[jobs[number].tasks]
        assert there == pytest.approx(apart.end_s, rel=RELATIVE)
        assert trace.peak_bytes[jobs[number].classes] == pytest.approx(apart.peak_bytes)


def test_interleaved_jobs_on_a_non_blocking_fabric_are_each_alone() -> None:
    """Without oversubscription whoever sits where shares nothing but idle switches."""
    cluster = oversubscribed(8, leaf_nodes=2, factor=1.0, kind="fat-tree")
    job = replicas(cluster)
    graph, jobs = together(cluster, (job, on_nodes([0, 2, 4, 6])), (job, on_nodes([1, 3, 5, 7])))

    apart = alone(cluster, job, on_nodes([0, 2, 4, 6])).makespan_s
    assert ends_s(execute(graph), jobs) == pytest.approx([apart, apart], rel=RELATIVE)


def test_rank_r_on_device_r_is_what_no_place_means() -> None:
    """A device map that maps nothing changes no array of the graph."""
    cluster = shared_adapters(2, nics=2)
    job = Job.of(dense(2), StrategyOptions(dp=2, tp=4), cluster=cluster)

    there, _ = together(cluster, (job, range(8)))
    plain = job.compiled().graph
    assert there.class_names == tuple(f"job 0: {name}" for name in plain.class_names)
    assert replace(there, class_names=plain.class_names, link_names=plain.link_names).equal(plain)


def test_a_job_that_starts_in_the_middle_of_a_leaf_crosses_leaves() -> None:
    """Four nodes fit one leaf; begun two nodes later they lie in two, and share their uplinks."""
    cluster = oversubscribed(8, leaf_nodes=4, factor=8.0, kind="fat-tree")
    job = replicas(cluster)

    inside, across = (alone(cluster, job, range(first, first + 8)) for first in (0, 4))

    assert across.makespan_s > inside.makespan_s
    assert alone(cluster, job, range(8, 16)).makespan_s == pytest.approx(inside.makespan_s)


def test_jobs_in_the_same_nodes_share_adapters() -> None:
    """One adapter for four devices: two ranks of each job ask for all of it when they reduce."""
    cluster = shared_adapters(2)
    job = replicas(cluster, ranks=4)
    left, right = [0, 1, 4, 5], [2, 3, 6, 7]
    graph, jobs = together(cluster, (job, left), (job, right))

    apart = alone(cluster, job, left).makespan_s
    beside = ends_s(execute(graph), jobs)

    assert beside[0] == beside[1] > apart
    private = with_links_apart(
        graph, jobs, np.array([link_kind(name) == "network" for name in graph.link_names])
    )
    assert ends_s(execute(private), jobs) == pytest.approx([apart, apart], rel=RELATIVE)


def test_all_bytes_arrive_whoever_is_beside() -> None:
    """Rate x time over every kind of link is what both jobs send, and no link exceeds its rate."""
    cluster = oversubscribed(8, leaf_nodes=2, factor=4.0, kind="fat-tree")
    one = replicas(cluster)
    other = Job.of(dense(2), StrategyOptions(dp=4, tp=2), cluster=cluster)
    places = on_nodes([0, 2, 4, 6]), on_nodes([1, 3, 5, 7])
    graph, _ = together(cluster, (one, places[0]), (other, places[1]), fold=False)
    apart = [
        moved_bytes(together(cluster, (job, place), fold=False)[0])
        for job, place in zip((one, other), places, strict=True)
    ]

    moved = moved_bytes(graph)

    assert moved == pytest.approx({k: apart[0][k] + apart[1][k] for k in moved}, rel=1e-9)
    trace = execute(graph)
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    for link, bandwidth in enumerate(graph.link_bandwidth_bytes_per_s):
        on_it = graph.flow_links == link
        sent = (graph.flow_bytes_per_s * graph.work_s[task])[on_it].sum()
        begin_s = (trace.start_s + graph.latency_s)[task[on_it]]
        # Between its first and last byte a link cannot have carried more than its rate allows.
        assert sent <= bandwidth * (trace.end_s[task[on_it]].max() - begin_s.min()) * (1 + 1e-9)


def moved_bytes(graph: ExecutionGraph) -> dict[str, float]:
    """Return what crosses links of each kind: bandwidth taken x time, summed. [B]"""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    moved = graph.flow_bytes_per_s * graph.work_s[task]
    kinds = np.array([link_kind(graph.link_names[link]) for link in graph.flow_links])
    return {str(kind): float(moved[kinds == kind].sum()) for kind in np.unique(kinds)}


SHAPES = [(2, 2, 1), (4, 1, 1), (1, 2, 2), (2, 1, 2), (1, 4, 1)]


def two_jobs(
    shapes: Sequence[tuple[int, int, int]],
    devices: Sequence[int],
    *,
    nics: int,
    leaf_nodes: int,
    slowdown: dict[int, float],
    fold: bool,
) -> Repeated:
    """Return two jobs of 4 ranks on 8 devices, the second one's step made twice."""
    per_node = 2 if leaf_nodes == 1 else 4
    base = shared_adapters(8 // per_node, devices=per_node)
    cluster = replace(
        base,
        node=replace(base.node, nics=min(nics, per_node)),
        fabric=replace(base.fabric, oversubscription=3.0, leaf_nodes=leaf_nodes),
        slowdown=slowdown,
    )
    jobs = [
        Job.of(dense(1), StrategyOptions(dp=dp, tp=tp, pp=pp), cluster=cluster, global_batch=8)
        if pp == 1
        else Job.of(dense(2), StrategyOptions(dp=dp, tp=tp, pp=pp), cluster=cluster, global_batch=8)
        for dp, tp, pp in shapes
    ]
    # Groups as they are laid out in practice: over ascending devices.
    places = [sorted(devices[:4]), sorted(devices[4:])]
    return repeated(*together(cluster, *zip(jobs, places, strict=True), fold=fold), [1, 2])


#: Ranks that share an adapter, 2 of one class of the first job and 1 of each of the second's.
UNEVEN = {
    "shapes": [(1, 2, 2), (2, 1, 2)],
    "devices": [0, 2, 4, 5, 1, 3, 6, 7],
    "nics": 1,
    "leaf_nodes": 2,
    "slowdown": {3: 1.5},
}


@settings(max_examples=12, deadline=None)
@example(**UNEVEN)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=2, max_size=2),
    devices=st.permutations(range(8)),
    nics=st.sampled_from([1, 2, 4]),
    leaf_nodes=st.sampled_from([1, 2]),
    slowdown=st.sampled_from([{}, {3: 1.5}]),
)
def test_folding_changes_nothing_beside_neighbours(**case: Any) -> None:
    """Wherever the ranks of two jobs sit: a task for twins gets what each of them would."""
    seen = []
    for fold in (True, False):
        made = two_jobs(**case, fold=fold)
        trace = execute(made.late_by([1e-3, 0.0]))
        seen.append(
            (
                trace.end_s[made.step(0, 0)].max(),
                *(trace.end_s[made.step(1, step)].max() for step in range(2)),
                *np.sort(np.repeat(trace.peak_bytes, made.graph.class_ranks)),
            )
        )
    assert seen[0] == pytest.approx(seen[1], rel=1e-9)


@pytest.mark.parametrize("sharing", ["max-min", "proteus"])
def test_the_engine_plays_several_jobs_as_the_reference_does(sharing: str) -> None:
    """Twins that share links included: the same events, and times to the last bit."""
    graph = two_jobs(**UNEVEN, fold=True).late_by([1e-3, 0.0])
    assert graph.flow_counts is not None

    fast, fast_events = execute_events(graph, sharing=sharing)

    slow, slow_events = reference_events(graph, sharing=sharing)
    assert np.array_equal(fast_events, slow_events)
    assert np.array_equal(fast.end_s, slow.end_s)


def test_memory_is_that_of_each_job_however_many_steps() -> None:
    """What a step takes it gives back: peaks do not grow, and neighbours hold nothing of ours."""
    cluster = oversubscribed(8, leaf_nodes=2, factor=4.0, kind="fat-tree")
    job = Job.of(dense(2), StrategyOptions(dp=4, tp=2, sharding="zero3"), cluster=cluster)
    places = on_nodes([0, 1, 2, 3]), on_nodes([4, 5, 6, 7])
    graph, jobs = together(cluster, *((job, place) for place in places))

    trace = execute(repeated(graph, jobs, [1, 4]).graph)

    for number, place in enumerate(places):
        apart = alone(cluster, job, place).peak_bytes
        assert trace.peak_bytes[jobs[number].classes] == pytest.approx(apart, rel=1e-9)


def test_a_part_of_several_jobs_is_the_job_alone() -> None:
    """Taken out of the joint graph, a job plays as compiled by itself."""
    cluster = oversubscribed(8, leaf_nodes=2, factor=4.0, kind="fat-tree")
    job = Job.of(dense(2), StrategyOptions(dp=2, pp=2, tp=2), cluster=cluster)
    places = on_nodes([0, 2, 4, 6]), on_nodes([1, 3, 5, 7])
    graph, jobs = together(cluster, *((job, place) for place in places))

    for number, place in enumerate(places):
        found = execute(part_of(graph, jobs[number]))
        assert found.makespan_s == pytest.approx(alone(cluster, job, place).makespan_s, rel=1e-9)
        assert (found.graph.kind == TaskKind.COMPUTE).any()


def test_a_job_needs_as_many_devices_as_ranks() -> None:
    """A place of another size is said to be one."""
    cluster = small_cluster(8)
    with pytest.raises(StrategyError, match="found 4 ranks, expected 3, the devices of the job"):
        together(cluster, (replicas(cluster, ranks=4), range(3)))
