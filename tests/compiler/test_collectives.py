"""Collectives of compiled jobs: on the node's links, and by the algorithm asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense, mixture, small_cluster
from tests.compiler.test_fold import check_equal
from tests.compiler.test_links import shared_adapters
from tests.cost.collective_places import SIZE, asked
from tests.cost.switches import cluster
from tests.cost.test_collective_model import together_s
from tests.search.jobs import setting
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.compiler.tasks.chunk import ChunkContext, sync_tasks
from wattree.compiler.tasks.ledger import Items
from wattree.cost import load_calibration, software_family
from wattree.cost.rates import Rates, rates_of
from wattree.cost.requests import CollectiveRequests, Request
from wattree.errors import StrategyError
from wattree.graph import TaskKind
from wattree.hardware import Cluster, Precision
from wattree.lowering.links import alone_s, rank_rates, share_of_one_group
from wattree.lowering.movement import DEFAULT_BUCKET_BYTES, Movement, resolved_overlap
from wattree.lowering.program import CollectiveKind
from wattree.lowering.topology import MeshTopology
from wattree.predict import predicted
from wattree.sim import execute
from wattree.strategy import Mesh, Offload, Schedule, Strategy, StrategyOptions, StrategyTree


def rates_on(place: Cluster, requests: CollectiveRequests | None = None) -> Rates:
    """Return the rates of a cluster whose links reach what their datasheets say."""
    rates = rates_of(
        place,
        software_family("megatron-core"),
        Precision.BF16,
        load_calibration(),
        collectives=requests,
    )
    node = place.node
    port = node.scale_up.bandwidth_bytes_per_s
    links = replace(
        rates.links,
        scale_up_bytes_per_s=port,
        scale_up_reduce_bytes_per_s=port,
        adapter_bytes_per_s=node.nics * node.nic_bandwidth_bytes_per_s / node.devices,
    )
    return replace(rates, links=links)


def context_of(topology: MeshTopology, rates: Rates) -> ChunkContext:
    """Return what turns traffic of a mesh into tasks, with the defaults of the software."""
    strategy = Strategy(mesh=topology.mesh, schedule=Schedule(), tree=StrategyTree(nodes={}))
    software = software_family("megatron-core")
    moves = Movement(
        overlap=resolved_overlap(strategy, software),
        bucket_bytes=DEFAULT_BUCKET_BYTES,
        parameter_bucket_bytes=0.0,
        early_updates=False,
        offload=Offload(),
        tier2_offload=Offload(),
        tiers={},
        memory_bytes_per_s=rates.memory_bytes_per_s,
        tier2_bytes_per_s=rates.memory_bytes_per_s,
        update_traffic_bytes=lambda elements, _: elements,
        update_products_s=lambda _: 0.0,
        update_working_bytes=0.0,
        gradient_bytes=software.gradient_bytes,
        parameter_bytes=software.parameter_bytes,
    )
    return ChunkContext(
        rates=rates,
        group=topology.group,
        name=lambda _: 0,
        axes=lambda _: 0,
        moves=moves,
        items=Items(),
    )


def job_on(
    place: Cluster, options: StrategyOptions, requests: CollectiveRequests | None = None
) -> Job:
    """Return a small job on a cluster of the catalog."""
    return Job.of(dense(4), options, cluster=place, rates=rates_on(place, requests))


@pytest.mark.parametrize("node", ["dgx-1", "8x-a100-pcie", "8x-mi300x"])
@pytest.mark.parametrize(
    ("axes", "spans"), [(("tp",), ((2, 1),)), (("dp",), ((4, 2),)), (("dp", "tp"), ((8, 1),))]
)
def test_a_compiled_collective_takes_as_long_as_the_links_of_its_node(
    node: str, axes: tuple[str, ...], spans: tuple[tuple[int, int], ...]
) -> None:
    """Tensor groups of neighbours, data groups across sockets: each as all of them are executed."""
    place = cluster(node, 1)
    topology = MeshTopology(mesh=Mesh(axes=(("dp", 4), ("tp", 2))), cluster=place)
    context = context_of(topology, rates_on(place))

    (task,) = sync_tasks(CollectiveKind.ALL_REDUCE, axes, SIZE, context, label="x", stream=0)

    expected = together_s(place, "all_reduce", "ring", spans)
    assert task["work_s"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "halving-doubling"])
def test_groups_of_a_node_that_share_an_adapter_take_their_time_together(algorithm: str) -> None:
    """Four data-parallel groups, one adapter: played, they get what the closed form says."""
    place = shared_adapters(2)
    job = job_on(place, StrategyOptions(dp=2, tp=4), asked(algorithm))

    trace = execute(job.compiled().graph)

    graph = trace.graph
    reduces = np.array([name == "gradients.reduce" for name in graph.names])[graph.name_ids]
    chosen = reduces & (graph.kind == TaskKind.COLLECTIVE) & (graph.work_s > 0)
    time_s = (trace.end_s - trace.start_s - graph.latency_s)[chosen]
    sent = graph.link_traffic_bytes[chosen]
    adapter = place.node.nic_bandwidth_bytes_per_s / place.node.devices
    assert time_s == pytest.approx(sent / adapter, rel=1e-6)


def test_phases_in_turn_keep_the_time_of_groups_in_lock_step() -> None:
    """Ports first, then the adapter that both groups come to at once: nothing is gained alone."""
    place = cluster("dgx-1", 2)
    topology = MeshTopology(mesh=Mesh(axes=(("dp", 8), ("tp", 2))), cluster=place)
    rates = rates_on(place, asked("hierarchical"))
    context = context_of(topology, rates)
    tasks = sync_tasks(CollectiveKind.ALL_REDUCE, ("dp",), SIZE, context, label="x", stream=0)
    groups = topology.mesh.groups(("dp",))
    shares = {0: [share_of_one_group(groups, use) for use in topology.links()]}

    work = alone_s(tasks, topology.links(), shares, rank_rates(rates.links))

    assert tasks["in_turn"].all()
    assert work == pytest.approx(tasks["work_s"])


@pytest.mark.parametrize(
    "job",
    [
        job_on(cluster("dgx-1", 2), StrategyOptions(dp=4, tp=2, pp=2)),
        job_on(cluster("8x-a100-pcie", 1), StrategyOptions(dp=2, tp=2, pp=2)),
        job_on(shared_adapters(2), StrategyOptions(dp=2, tp=4), asked("hierarchical")),
        job_on(shared_adapters(2), StrategyOptions(dp=4, tp=2), asked("nccl")),
        job_on(small_cluster(16), StrategyOptions(dp=2, tp=8), asked("tree")),
    ],
    ids=["cube mesh", "pcie", "hierarchical", "nccl", "tree"],
)
def test_folding_changes_nothing_whatever_the_algorithm(job: Job) -> None:
    """One rank for all that do the same, on any links."""
    check_equal(job)


def test_experts_exchange_over_rails() -> None:
    """PXN loads ports more, adapters alike: the step is not shorter where ports are wide."""
    place = small_cluster(16)
    options = StrategyOptions(dp=2, ep=8)
    rail = CollectiveRequests(by_kind={"all_to_all": Request(algorithm="rail")})
    direct = CollectiveRequests(by_kind={"all_to_all": Request(algorithm="direct")})

    steps = [
        execute(
            Job.of(mixture(2), options, cluster=place, rates=rates_on(place, each)).compiled().graph
        ).makespan_s
        for each in (rail, direct)
    ]

    assert steps[0] >= steps[1] > 0


def test_groups_that_an_algorithm_cannot_serve_are_refused_when_compiled() -> None:
    """Three tensor ranks on nodes of eight: the key, and what would fit."""
    place = cluster("dgx-h100", 3)
    job = Job.of(
        dense(4, heads=6, hidden=48, vocab=384, ffn=192),
        StrategyOptions(dp=8, tp=3),
        cluster=place,
        global_batch=16,
        rates=rates_on(place, asked("hierarchical")),
    )

    with pytest.raises(StrategyError) as raised:
        job.compiled()

    (fault,) = raised.value.misfits.items()
    assert fault[0].startswith("collectives.")
    assert fault[1] == (
        "algorithm 'hierarchical' needs as many ranks in every domain, found 1 to 2; use 'ring', "
        "'tree' or 'direct'"
    )


@pytest.mark.parametrize(
    ("node", "collectives"),
    [
        ("dgx-1", "auto"),
        ("8x-a100-pcie", "auto"),
        ("dgx-a100", "nccl"),
        ("dgx-a100", "hierarchical"),
        ("dgx-a100", {"all_reduce": {"algorithm": "ring", "protocol": "ll"}}),
    ],
)
@pytest.mark.parametrize(
    "options",
    [StrategyOptions(dp=8, tp=2), StrategyOptions(dp=4, tp=4), StrategyOptions(dp=2, tp=2, pp=4)],
    ids=["dp8tp2", "dp4tp4", "dp2tp2pp4"],
)
def test_screening_and_simulation_use_the_same_factors(
    node: str, collectives: object, options: StrategyOptions
) -> None:
    """Whatever carries the traffic: the closed form of the step is as near as it is elsewhere."""
    job = setting(node=node, nodes=2, batch=32, collectives=collectives, precision="fp16")

    result = predicted(job, options).result
    found = estimate(job, options, Degrees.of([options], 32))

    assert found.step_time_s[0] == pytest.approx(result.step_time_s, rel=0.08)
