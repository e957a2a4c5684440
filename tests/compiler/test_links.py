"""Links that ranks share: adapters of a node, uplinks of a leaf, and what is slow among them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from tests.compiler.test_fold import check_equal
from wattree.graph import ExecutionGraph, TaskKind
from wattree.hardware import Cluster
from wattree.sim import execute
from wattree.strategy import StrategyOptions

#: A tenth of the link rate of an H100's own adapter: communication decides.
SLOW_BYTES_PER_S = 2e9


def shared_adapters(nodes: int, *, devices: int = 4, nics: int = 1) -> Cluster:
    """Return nodes whose devices share slow adapters; all adapters of a node carry the same."""
    cluster = small_cluster(nodes * devices, per_node=devices)
    node = replace(
        cluster.node, nics=nics, nic_bandwidth_bytes_per_s=SLOW_BYTES_PER_S * devices / nics
    )
    return replace(cluster, node=node)


def step_s(job: Job) -> float:
    """Play the job."""
    return execute(job.compiled().graph).makespan_s


@pytest.mark.parametrize("nics", [1, 2])
def test_replicas_of_a_node_share_its_adapters_as_if_each_had_its_part(nics: int) -> None:
    """Four data-parallel groups over two nodes: together they get what four small adapters give."""
    options = StrategyOptions(dp=2, tp=4)
    model = dense(2)

    shared = Job.of(model, options, cluster=shared_adapters(2, nics=nics))
    own = Job.of(model, options, cluster=shared_adapters(2, nics=4))

    assert step_s(shared) == pytest.approx(step_s(own), rel=1e-9)


def test_one_group_alone_has_the_whole_adapter() -> None:
    """One rank on each node: its reductions take a quarter of the time that four ranks' take."""
    model = dense(2)
    options = StrategyOptions(dp=2)
    lonely = replace(shared_adapters(2), nodes=2)
    graph = Job.of(model, StrategyOptions(dp=2, tp=4), cluster=lonely).compiled().graph
    whole = next(k for k, name in enumerate(graph.link_names) if "network" in name)
    assert graph.link_bandwidth_bytes_per_s[whole] == pytest.approx(
        4
        * Job.of(model, options, cluster=shared_adapters(2, nics=4))
        .compiled()
        .graph.link_bandwidth_bytes_per_s[-1]
    )
    alone = execute(graph_of_one_group(lonely))
    spread = execute(graph_of_one_group(shared_adapters(2, nics=4)))
    assert reductions_s(alone.graph, alone.end_s - alone.start_s) == pytest.approx(
        reductions_s(spread.graph, spread.end_s - spread.start_s) / 4, rel=1e-3
    )


def graph_of_one_group(cluster: Cluster) -> ExecutionGraph:
    """Return two replicas, one on each node: pipeline stages keep the other devices idle."""
    # Stage s of replica r sits on device 4 r + s, so only one stage reduces at a time at the end.
    options = StrategyOptions(dp=2, pp=4)
    job = Job.of(dense(4), options, cluster=cluster, global_batch=8)
    mesh = job.strategy.mesh
    axes = (("dp", mesh.degree("dp")), ("pp", mesh.degree("pp")))
    strategy = replace(job.strategy, mesh=replace(mesh, axes=axes))
    return replace(job, strategy=strategy).compiled().graph


def reductions_s(graph: ExecutionGraph, durations_s: np.ndarray) -> float:
    """Return the shortest gradient reduction's time beyond its latency. [s]"""
    reduces = np.array([name == "gradients.reduce" for name in graph.names])[graph.name_ids]
    chosen = reduces & (graph.kind == TaskKind.COLLECTIVE) & (graph.work_s > 0)
    return float((durations_s - graph.latency_s)[chosen].min())


def oversubscribed(nodes: int, *, leaf_nodes: int, factor: float, kind: str) -> Cluster:
    """Return nodes of two devices under small leaves."""
    cluster = small_cluster(nodes * 2, per_node=2)
    node = replace(cluster.node, nic_bandwidth_bytes_per_s=SLOW_BYTES_PER_S)
    fabric = replace(
        cluster.fabric, kind=kind, oversubscription=factor, leaf_nodes=leaf_nodes, name="small"
    )
    return replace(cluster, node=node, fabric=fabric)


def exchanges_s(options: StrategyOptions, cluster: Cluster) -> float:
    """Return the time of one exchange of tokens among experts, latency apart. [s]"""
    trace = execute(Job.of(mixture(2), options, cluster=cluster).compiled().graph)
    graph = trace.graph
    exchange = np.array(["experts" in name or "moe" in name for name in graph.names])
    chosen = exchange[graph.name_ids] & (graph.kind == TaskKind.COLLECTIVE) & (graph.work_s > 0)
    assert chosen.any()
    return float((trace.end_s - trace.start_s - graph.latency_s)[chosen].max())


@pytest.mark.parametrize("kind", ["fat-tree", "rail-optimised"])
@pytest.mark.parametrize(
    ("options", "slower"),
    [
        # Four experts' ranks fill two nodes: one leaf.
        (StrategyOptions(dp=2, ep=4), 1.0),
        # Eight span both leaves: 4 of 7 parts leave the leaf, 6 of 8 leave the node; 8-fold.
        (StrategyOptions(ep=8), 8.0 * 4 / 6),
    ],
)
def test_oversubscription_bites_only_what_leaves_the_leaf(
    kind: str, options: StrategyOptions, slower: float
) -> None:
    """Exchanges inside a leaf take no longer; those across leaves wait for its uplinks."""
    plain, crowded = (
        exchanges_s(options, oversubscribed(4, leaf_nodes=2, factor=factor, kind=kind))
        for factor in (1.0, 8.0)
    )

    assert crowded / plain == pytest.approx(slower, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    axes=st.sampled_from([(2, 2, 2), (4, 1, 2), (1, 4, 2), (2, 4, 1), (8, 1, 1)]),
    nics=st.sampled_from([1, 2, 4]),
    factor=st.sampled_from([1.0, 3.0]),
    leaf_nodes=st.sampled_from([1, 2]),
)
def test_folding_changes_nothing_where_links_are_shared(
    axes: tuple[int, int, int], nics: int, factor: float, leaf_nodes: int
) -> None:
    """Adapters, uplinks and their twins count the same folded and whole."""
    dp, tp, pp = axes
    cluster = shared_adapters(2, nics=nics)
    fabric = replace(cluster.fabric, oversubscription=factor, leaf_nodes=leaf_nodes)
    job = Job.of(
        dense(2),
        StrategyOptions(dp=dp, tp=tp, pp=pp),
        cluster=replace(cluster, fabric=fabric),
    )
    check_equal(job)


@pytest.mark.parametrize("fold", [True, False])
def test_a_slow_adapter_slows_all_that_wait_for_it(*, fold: bool) -> None:
    """Reductions over it take as long as its factor says; nothing else changes."""
    cluster = shared_adapters(2, nics=4)
    slow = replace(cluster, slow_links={1: 3.0})
    options, model = StrategyOptions(dp=2, tp=4), dense(2)
    plain, slowed = (
        execute(Job.of(model, options, cluster=c).compiled(fold=fold).graph)
        for c in (cluster, slow)
    )

    before = plain.end_s - plain.start_s - plain.graph.latency_s
    after = slowed.end_s - slowed.start_s - slowed.graph.latency_s
    assert reductions_s(slowed.graph, after) >= reductions_s(plain.graph, before)
    assert longest_s(slowed.graph, after) == pytest.approx(3 * longest_s(plain.graph, before))
    assert slowed.makespan_s > plain.makespan_s


def longest_s(graph: ExecutionGraph, durations_s: np.ndarray) -> float:
    """Return the longest gradient reduction over the network. [s]"""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    network = np.array(["network" in name for name in graph.link_names])
    return float(durations_s[task[network[graph.flow_links]]].max())


def test_slow_adapters_fold_exactly() -> None:
    """A slow link splits what differs, and no more."""
    cluster = replace(shared_adapters(2, nics=2), slow_links={0: 2.0})
    seen = check_equal(Job.of(dense(2), StrategyOptions(dp=2, tp=2, pp=2), cluster=cluster))
    assert seen.classes < 8


def test_a_link_carries_what_its_flows_send() -> None:
    """Rate x time over each link, summed, is bytes: those of all ranks on it."""
    job = Job.of(dense(2), StrategyOptions(dp=2, tp=4), cluster=shared_adapters(2))
    graph = job.compiled(fold=False).graph
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    moved = graph.flow_bytes_per_s * graph.work_s[task]
    for link, name in enumerate(graph.link_names):
        if "network" not in name:
            continue
        over = graph.flow_links == link
        reduces = np.unique(task[over])
        assert len(reduces)
        # Every reduction over two nodes sends its volume, 2 (n - 1) / n of the buffer, once.
        assert moved[over].sum() == pytest.approx(graph.link_traffic_bytes[reduces].sum())


def test_twins_on_a_shared_adapter_count_as_the_groups_that_they_are() -> None:
    """Four groups of replicas cross one adapter; ranks of one tensor group are one flow there."""
    options = StrategyOptions(dp=2, tp=4)
    job = Job.of(dense(2), options, cluster=shared_adapters(2))
    folded, whole = (job.compiled(fold=fold).graph for fold in (True, False))
    across = Job.of(dense(2), StrategyOptions(tp=8), cluster=shared_adapters(2)).compiled().graph

    assert counts_by_kind(folded) == {"scale-up": {1}, "network": {4}}
    assert counts_by_kind(across) == {"scale-up": {1}, "network": {1}}
    assert whole.flow_counts is None
    assert execute(folded, sharing="proteus").makespan_s == pytest.approx(
        execute(whole, sharing="proteus").makespan_s, rel=1e-9
    )


def counts_by_kind(graph: ExecutionGraph) -> dict[str, set[int]]:
    """Return the counts that flows have on each kind of link."""
    assert graph.flow_counts is not None
    found: dict[str, set[int]] = {}
    for link, count in zip(graph.flow_links, graph.flow_counts, strict=True):
        kind = next(k for k in ("scale-up", "network") if k in graph.link_names[link])
        found.setdefault(kind, set()).add(int(count))
    return found
