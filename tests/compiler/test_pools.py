"""Clusters whose nodes differ: every rank at the times of its own device, links and groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.compiler.jobs import Job, cut_node, dense, mixed_cluster, mixture
from tests.compiler.test_fold import check_equal, seen
from tests.sim.reference import execute_reference
from wattree.cost import load_calibration, software_family
from wattree.cost.rates import pool_rates
from wattree.cost.requests import CollectiveRequests, Request, kinds_of
from wattree.errors import StrategyError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.hardware import Cluster, Node, Precision, load_node
from wattree.sim import execute
from wattree.strategy import ExpertLoad, Mesh, Offload, StrategyOptions, Traffic

H100, A100 = cut_node("dgx-h100", 4), cut_node("dgx-a100", 4)
#: H100 nodes by another name: a pool of its own that differs in nothing.
SAME = replace(H100, name="another-name")

OPTIONS = {
    "stages": StrategyOptions(pp=4, dp=2, tp=2),
    "stages of a node and a half": StrategyOptions(pp=2, dp=2, tp=4, sharding="zero1"),
    "replicas": StrategyOptions(dp=4, tp=4, sharding="zero1"),
    "shards": StrategyOptions(fsdp=16, sharding="zero3"),
    "tensor ranks over nodes": StrategyOptions(tp=8, dp=2, sequence_parallel=True),
    "interleaved": StrategyOptions(pp=2, dp=2, tp=4, virtual_stages=2, schedule="interleaved"),
    "experts": StrategyOptions(ep=8, dp=2),
}


def job(options: StrategyOptions, cluster: Cluster) -> Job:
    """Return a small job of four micro-batches per replica."""
    model = mixture(4) if options.ep > 1 else dense(4)
    return Job.of(model, options, cluster=cluster, global_batch=4 * options.replicas)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(("oversubscription", "leaf_nodes"), [(1.0, 32), (3.0, 1), (3.0, 2)])
def test_pools_that_differ_in_name_are_one_cluster(
    options: StrategyOptions, oversubscription: float, leaf_nodes: int
) -> None:
    """All that is by pool gives what one pool gives."""
    fabric = {"oversubscription": oversubscription, "leaf_nodes": leaf_nodes}

    plain = seen(job(options, mixed_cluster((H100, 4), **fabric)), fold=True)
    two = seen(job(options, mixed_cluster((H100, 2), (SAME, 2), **fabric)), fold=True)

    assert two.step_s == pytest.approx(plain.step_s, rel=1e-12)
    assert two.peaks_bytes == pytest.approx(plain.peaks_bytes, rel=1e-12)
    assert two.energy_j == pytest.approx(plain.energy_j, rel=1e-12)
    assert two.sent_bytes == pytest.approx(plain.sent_bytes, rel=1e-12)


def test_neighbours_that_say_the_same_are_one_pool() -> None:
    """So that no one pays for saying it twice."""
    assert len(mixed_cluster((H100, 2), (H100, 1), (A100, 1)).pools) == 2


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_mixed_cluster_lies_between_its_parts(options: StrategyOptions) -> None:
    """No faster than all of the fast device, no slower than all of the slow one."""
    fast, slow, both = (
        seen(job(options, mixed_cluster(*pools)), fold=True).step_s
        for pools in ([(H100, 4)], [(A100, 4)], [(H100, 2), (A100, 2)])
    )

    assert fast < both <= slow * (1 + 1e-12)


def times(graph: ExecutionGraph, *, first: bool) -> np.ndarray:
    """Return latency and work of the tasks of the first stage, or of the last."""
    stage = 0 if first else len(graph.class_ranks) - 1
    owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
    mine = (owner == stage) & (graph.kind != TaskKind.TRANSFER)
    return np.stack([graph.latency_s[mine], graph.work_s[mine]])


def test_each_stage_takes_the_times_of_its_own_device() -> None:
    """Task by task: those of the same stage on a cluster of that device alone."""
    options = StrategyOptions(pp=2, dp=2, tp=4, sharding="zero1")
    fast, slow, both = (
        job(options, mixed_cluster(*pools)).compiled().graph
        for pools in ([(H100, 4)], [(A100, 4)], [(H100, 2), (A100, 2)])
    )

    assert both.class_names == (
        "stage 0 on h100-sxm-80gb (8 ranks)",
        "stage 1 on a100-sxm-80gb (8 ranks)",
    )
    np.testing.assert_allclose(times(both, first=True), times(fast, first=True), rtol=1e-12)
    np.testing.assert_allclose(times(both, first=False), times(slow, first=False), rtol=1e-12)


def reductions(graph: ExecutionGraph) -> np.ndarray:
    """Return the reductions of gradients."""
    named = np.array([name == "gradients.reduce" for name in graph.names])[graph.name_ids]
    return np.flatnonzero(named)


def test_replicas_of_two_devices_compute_at_their_own_speed_and_reduce_at_the_slower() -> None:
    """By hand: a reduction of S bytes over n ranks takes 2 (n - 1) / n S over the slower adapter.

    The faster one carries as many bytes in that time, so it has room to spare.
    """
    one_h100, one_a100 = cut_node("dgx-h100", 1), cut_node("dgx-a100", 1)
    cluster = mixed_cluster((one_h100, 1), (one_a100, 1))
    graph = job(StrategyOptions(dp=2), cluster).compiled().graph
    alone = [
        job(StrategyOptions(dp=2), mixed_cluster((node, 2))).compiled().graph
        for node in (one_h100, one_a100)
    ]
    efficiency = load_calibration().general("network_efficiency")
    rates = [efficiency * node.nic_bandwidth_bytes_per_s for node in (one_h100, one_a100)]

    for number, plain in enumerate(alone):
        owner = graph.stream_class[graph.stream_ids[graph.stream_offsets[:-1]]]
        mine = (graph.kind == TaskKind.COMPUTE) & (owner == number)
        computes = plain.kind == TaskKind.COMPUTE
        np.testing.assert_allclose(graph.work_s[mine], plain.work_s[computes], rtol=1e-12)
    for task in reductions(graph):
        flows = slice(graph.flow_offsets[task], graph.flow_offsets[task + 1])
        sent = graph.link_traffic_bytes[task]
        assert graph.work_s[task] == pytest.approx(sent / min(rates))
        np.testing.assert_allclose(graph.flow_bytes_per_s[flows], min(rates), rtol=1e-12)
        np.testing.assert_allclose(
            np.sort(graph.link_bandwidth_bytes_per_s[graph.flow_links[flows]]), np.sort(rates)
        )


def test_a_transfer_goes_at_the_slower_end() -> None:
    """From an adapter of 400 Gbit/s to one of 200: the sender's is half used."""
    cluster = mixed_cluster((cut_node("dgx-h100", 1), 1), (cut_node("dgx-a100", 1), 1))
    graph = job(StrategyOptions(pp=2), cluster).compiled().graph
    transfers = np.flatnonzero(graph.kind == TaskKind.TRANSFER)

    for task in transfers:
        flows = slice(graph.flow_offsets[task], graph.flow_offsets[task + 1])
        used = graph.flow_bytes_per_s[flows]
        room = graph.link_bandwidth_bytes_per_s[graph.flow_links[flows]]
        assert sorted(used / room) == pytest.approx([0.5, 1.0])


def test_domains_end_with_their_pool() -> None:
    """Two nodes of one NVLink domain and a node of another pool: groups over both cross."""
    wide = replace(H100, scale_up=replace(H100.scale_up, domain_devices=8))
    other = replace(wide, name="another-name")
    options = StrategyOptions(tp=8)
    inside = job(options, mixed_cluster((wide, 2))).compiled().graph
    across = job(options, mixed_cluster((wide, 1), (other, 1))).compiled().graph

    def networks(graph: ExecutionGraph) -> bool:
        return any("network" in graph.link_names[link] for link in np.unique(graph.flow_links))

    assert not networks(inside)
    assert networks(across)


def test_members_of_unequal_nodes_load_their_own_ports() -> None:
    """A group of 8 in a node and 4 in each of two: each adapter sends what its own node must."""
    eight, four = cut_node("dgx-h100", 8), cut_node("dgx-a100", 4)
    options = StrategyOptions(dp=16)
    graph = job(options, mixed_cluster((eight, 1), (four, 2))).compiled(fold=False).graph
    task = reductions(graph)[0]
    flows = slice(graph.flow_offsets[task], graph.flow_offsets[task + 1])
    sent = graph.link_traffic_bytes[task]

    loads = {
        graph.link_names[link].removesuffix(" network"): rate * graph.work_s[task]
        for link, rate in zip(graph.flow_links[flows], graph.flow_bytes_per_s[flows], strict=True)
        if graph.link_names[link].endswith("network")
    }
    h100 = [load for name, load in loads.items() if "h100" in name]
    a100 = [load for name, load in loads.items() if "a100" in name]
    np.testing.assert_allclose(h100, [sent / 8] * 8)
    np.testing.assert_allclose(a100, [sent / 4] * 8)


def switched(node: Node) -> Node:
    """Return a node whose devices meet at a switch: its domain may be of any size."""
    return replace(node, scale_up=replace(node.scale_up, kind="switch"))


KINDS = {
    "h100": H100,
    "a100": A100,
    "a100 of two": cut_node("dgx-a100", 2),
    "h100 of eight": cut_node("dgx-h100", 8),
    "v100 with one adapter": switched(cut_node("dgx-1", 4, nics=1)),
    "a100 of six": cut_node("dgx-a100", 6, nics=2),
    "a100 of six with one adapter": cut_node("dgx-a100", 6, nics=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A small job in few words, for failures that can be read."""

    pools: tuple[tuple[str, int], ...]
    options: StrategyOptions
    axes: tuple[tuple[str, int], ...]
    oversubscription: float
    leaf_nodes: int
    kind: str
    slow_links: dict[int, float]
    family: str

    def job(self) -> Job:
        """Return the job."""
        made = Job.of(
            dense(6, heads=24, hidden=48, ffn=192, vocab=264),  # for tensor groups of 3 and 6, too
            self.options,
            cluster=mixed_cluster(
                *((KINDS[name], nodes) for name, nodes in self.pools),
                oversubscription=self.oversubscription,
                leaf_nodes=self.leaf_nodes,
                kind=self.kind,
                slow_links=self.slow_links,
            ),
            global_batch=2 * self.options.dp,
            family=self.family,
        )
        return replace(made, strategy=replace(made.strategy, mesh=Mesh(axes=self.axes)))


@st.composite
def mixed_cases(draw: st.DrawFn) -> Case:
    """Return jobs on one to three pools of unequal nodes."""
    named = st.tuples(st.sampled_from(tuple(KINDS)), st.integers(1, 2))
    pools = draw(st.lists(named, min_size=1, max_size=3, unique_by=lambda pool: pool[0]))
    devices = sum(KINDS[name].devices * nodes for name, nodes in pools)
    tp = draw(st.sampled_from([d for d in (1, 2, 3, 4, 6, 8) if devices % d == 0]))
    pp = draw(st.sampled_from([d for d in (1, 2, 3, 5) if devices // tp % d == 0]))
    options = StrategyOptions(
        pp=pp,
        tp=tp,
        dp=devices // tp // pp,
        sharding=draw(st.sampled_from(("none", "zero1", "zero3"))),
    )
    axes = [(axis, options.value(axis)) for axis in ("pp", "dp", "tp")]
    return Case(
        pools=tuple(pools),
        options=options,
        axes=tuple(draw(st.permutations([axis for axis in axes if axis[1] > 1]))),
        oversubscription=draw(st.sampled_from((1.0, 3.0))),
        leaf_nodes=draw(st.sampled_from((1, 2, 32))),
        kind=draw(st.sampled_from(("rail-optimised", "fat-tree"))),
        slow_links=draw(st.dictionaries(st.integers(0, devices - 1), st.just(2.0), max_size=1)),
        family=draw(st.sampled_from(("megatron-core", "torchtitan"))),
    )


def straddling(
    *pools: tuple[str, int], tp: int, dp: int, sharding: str = "zero1", inner: str = "tp"
) -> Case:
    """Return a case whose groups have unequal numbers of ranks on the links that they cross."""
    axes = (("dp", dp), ("tp", tp))
    return Case(
        pools=pools,
        options=StrategyOptions(tp=tp, dp=dp, sharding=sharding),
        axes=axes if inner == "tp" else axes[::-1],
        oversubscription=3.0,
        leaf_nodes=2,
        kind="rail-optimised",
        slow_links={},
        family="megatron-core",
    )


#: Two groups with one, two or three ranks on each uplink: their task has the bandwidth of one.
UPLINKS = straddling(("h100", 2), ("a100", 1), ("v100 with one adapter", 2), tp=2, dp=10)
#: Two groups on each adapter of three devices, of which no class has two.
MIRRORED = straddling(("a100 of six", 1), ("h100", 1), tp=2, dp=5, sharding="zero3")
#: Flows of one task on an adapter that are unequal, on nodes of one kind.
UNEQUAL = straddling(("a100 of six with one adapter", 4), tp=6, dp=4, inner="dp")


@settings(max_examples=15, deadline=None)
@example(case=UPLINKS)
@example(case=MIRRORED)
@example(case=UNEQUAL)
@given(case=mixed_cases())
def test_folding_changes_nothing_on_mixed_clusters(case: Case) -> None:
    """Whatever the groups straddle."""
    check_equal(case.job())


def test_ranks_that_share_an_adapter_are_one_class() -> None:
    """One for each pool: what a folded flow gets of the adapter is what its ranks would."""
    cluster = mixed_cluster((H100, 1), (KINDS["v100 with one adapter"], 1), oversubscription=2.0)

    assert check_equal(job(StrategyOptions(dp=8), cluster)).classes == 2


@pytest.mark.parametrize("case", [UPLINKS, UNEQUAL], ids=["uplinks", "unequal"])
def test_the_plain_executor_gives_the_same(case: Case) -> None:
    """A mixed graph is a graph like any other, and so is one of unequal flows."""
    graph = case.job().compiled().graph

    fast, plain = execute(graph), execute_reference(graph)

    np.testing.assert_array_equal(fast.end_s, plain.end_s)


@pytest.mark.parametrize("algorithm", ["auto", "ring", "hierarchical", "nccl"])
def test_folding_changes_nothing_with_algorithms_on_pools(algorithm: str) -> None:
    """Each rank goes by the links of its own node: a cube mesh and a switch."""
    cluster = mixed_cluster((load_node("dgx-1"), 1), (load_node("dgx-a100"), 1))
    kinds = kinds_of(algorithm)
    requests = CollectiveRequests(by_kind=dict.fromkeys(kinds, Request(algorithm=algorithm)))
    rates = pool_rates(
        cluster,
        software_family("megatron-core"),
        Precision.BF16,
        load_calibration(),
        collectives=requests,
    )
    made = job(StrategyOptions(dp=4, tp=4), cluster)

    check_equal(replace(made, rates=rates))


@pytest.mark.parametrize(
    ("options", "cluster", "key"),
    [
        (
            StrategyOptions(dp=16, traffic=Traffic(offload=Offload(optimizer="host"))),
            mixed_cluster((H100, 2), (A100, 2)),
            "strategy.offload: found together with cluster.pools",
        ),
        (
            StrategyOptions(dp=4, ep=4, expert_load=ExpertLoad(imbalance=2.0)),
            mixed_cluster((H100, 2), (A100, 2)),
            "strategy.expert_imbalance: found experts of unequal load with cluster.pools",
        ),
        (
            StrategyOptions(dp=6, tp=1),
            mixed_cluster((cut_node("dgx-a100", 2), 1), (cut_node("dgx-1", 4), 1)),
            "cluster.pools: found scale-up domains of unequal size",
        ),
    ],
    ids=["offload", "unequal experts", "unequal domains"],
)
def test_what_pools_cannot_express_is_refused(
    options: StrategyOptions, cluster: Cluster, key: str
) -> None:
    """By the keys that do not go together."""
    with pytest.raises(StrategyError, match=key):
        job(options, cluster).compiled()
