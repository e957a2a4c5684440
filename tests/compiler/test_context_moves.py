"""Context parallelism and uneven experts together with links, streams, gradients and sharing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense, mixture
from tests.compiler.test_collectives import job_on, rates_on
from tests.compiler.test_fold import check_equal
from tests.compiler.test_links import shared_adapters
from tests.cost.switches import cluster
from tests.search.jobs import setting
from wattree.accounts.live import live_tensors
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.lowering.collective_costs import collective_costs
from wattree.lowering.program import CollectiveKind
from wattree.lowering.topology import MeshTopology
from wattree.predict import predicted
from wattree.sim import execute
from wattree.strategy import ExpertLoad, Mesh, StrategyOptions, Traffic

SIZE = np.array([1e9])


# ---------------------------------------------------------------- links of the node


def pass_s(node: str, mesh: dict[str, int], kind: CollectiveKind) -> float:
    """Return the time of a collective over `cp` on one node at the rates of its datasheet."""
    place = cluster(node, 1)
    topology = MeshTopology(mesh=Mesh(axes=tuple(mesh.items())), cluster=place)
    costs = collective_costs(kind, SIZE, topology.group(("cp",)), rates_on(place))
    return float(costs.work_s[0])


@pytest.mark.parametrize("node", ["dgx-h100", "8x-a100-pcie"])
def test_blocks_that_go_round_a_node_take_as_long_as_a_gather(node: str) -> None:
    """Through a switch, or a tree whose bridge every ring crosses: there is one way round."""
    found = [
        pass_s(node, {"cp": 8}, kind)
        for kind in (CollectiveKind.RING_GATHER, CollectiveKind.ALL_GATHER)
    ]

    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("mesh", [{"cp": 8}, {"dp": 2, "cp": 4}, {"cp": 2, "dp": 4}], ids=str)
def test_blocks_between_neighbours_of_a_full_mesh_have_one_of_its_cables(
    mesh: dict[str, int],
) -> None:
    """A message takes the direct cable, one of the seven that make up a port."""
    port = cluster("8x-mi300x", 1).node.scale_up.bandwidth_bytes_per_s
    sent = SIZE[0] * (mesh["cp"] - 1) / mesh["cp"]

    time_s = pass_s("8x-mi300x", mesh, CollectiveKind.RING_GATHER)

    assert time_s == pytest.approx(7 * sent / port)


# ---------------------------------------------------------------- played and in closed form

EXPERTS = {"ep": 8, "tp": 2, "recompute": "full", "expert_load": ExpertLoad(imbalance=1.5)}
NO_SYNC = {"dp": 8, "sharding": "zero3", "reduce_every_micro_batch": False}


@pytest.mark.parametrize(
    ("model", "node", "options", "in_line"),
    [
        *(
            ("llama-3.1-8b", node, {"cp": 4, "dp": 2, "context": context}, in_line)
            for context in ("gather", "ring", "ulysses")
            for node, in_line in (("dgx-h100", ("context",)), ("8x-mi300x", ()))
        ),
        ("qwen3-30b-a3b", "dgx-h100", EXPERTS, ("experts",)),
        ("llama-3.1-8b", "dgx-h100", NO_SYNC, ("gradients",)),
    ],
)
def test_settings_of_both_kinds_mean_the_same_to_closed_form_and_play(
    model: str, node: str, options: dict[str, Any], in_line: tuple[str, ...]
) -> None:
    """On the computation's stream, on cables, and with experts that are not equally popular."""
    nodes = 2 if "ep" in options else 1
    job = setting(model=model, node=node, batch=32, sequence=4096, nodes=nodes)
    chosen = StrategyOptions(traffic=Traffic(in_line=in_line), **options)

    estimated = estimate(job, chosen, Degrees.of([chosen], 32))
    executed = predicted(job, chosen, detail=False)

    assert estimated.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.03)
    assert estimated.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.08)


@pytest.mark.parametrize("context", ["gather", "ring"])
def test_context_in_line_takes_what_it_hid(context: str) -> None:
    """Gathers were waited for already; a ring in line hides nothing."""
    times = [
        execute(
            Job.of(
                dense(1), StrategyOptions(cp=4, context=context, traffic=Traffic(in_line=in_line))
            )
            .compiled()
            .graph
        ).makespan_s
        for in_line in ((), ("context",))
    ]

    assert times[1] > times[0] if context == "ring" else times[1] >= times[0]


# ---------------------------------------------------------------- gradients that are kept whole


def held_for_reductions(sharding: str, *, often: bool | None, early: bool = False) -> float:
    """Return the live gradients in the buffer of a reduction, over a step's tasks. [B]"""
    options = StrategyOptions(
        dp=4,
        sharding=sharding,
        reduce_every_micro_batch=often,
        traffic=Traffic(overlap_optimizer=early),
    )
    ledger = Job.of(dense(), options, global_batch=16).compiled().ledger
    staged = [i for i, item in enumerate(ledger.items) if item.name == "bucket under reduction"]
    lines = np.concatenate([piece.ledger for piece in ledger.stages[0].pieces])
    return float(lines["bytes"][np.isin(lines["item"], staged) & (lines["bytes"] > 0)].sum())


@pytest.mark.parametrize(
    ("sharding", "often", "staged"),
    [
        ("zero3", None, True),
        ("zero3", True, True),
        ("zero3", False, False),
        ("zero1", True, False),
        ("none", True, False),
    ],
)
@pytest.mark.parametrize("update", ["early", "late"])
def test_only_gradients_kept_as_shards_need_a_buffer_to_be_reduced_from(
    *, sharding: str, often: bool | None, staged: bool, update: str
) -> None:
    """Under `no_sync` they lie whole on the device anyway, and are reduced there."""
    held = held_for_reductions(sharding, often=often, early=update == "early")

    assert (held > 0) == staged


@pytest.mark.parametrize("often", [None, False])
def test_gradients_of_early_updates_come_and_go_whole_or_as_shards(*, often: bool | None) -> None:
    """Nothing of them is held before the first backward, and nothing is left after the last."""
    options = StrategyOptions(
        dp=4,
        sharding="zero3",
        reduce_every_micro_batch=often,
        traffic=Traffic(overlap_optimizer=True),
    )
    own = {"placeholder_gradients": False}  # which stay
    compiled = Job.of(dense(), options, global_batch=16, traits=own).compiled()
    trace = execute(compiled.graph)

    alive = live_tensors(trace, compiled.ledger, 0)
    assert sum(row.bytes for row in alive) == pytest.approx(trace.peak_bytes[0], rel=1e-9)
    held = compiled.ledger.stages[0].holdings
    assert not any(compiled.ledger.items[each.item].category == "gradients" for each in held)
    assert compiled.graph.alloc_bytes.sum() == pytest.approx(compiled.graph.free_bytes.sum())


# ---------------------------------------------------------------- shared links


@pytest.mark.parametrize("sharing", ["max-min", "proteus"])
def test_uneven_exchanges_over_shared_adapters_are_counted_by_group(sharing: str) -> None:
    """A group is one flow on an adapter, whatever each of its ranks sends there."""
    options = StrategyOptions(
        ep=4, tp=2, expert_over_tensor=False, expert_load=ExpertLoad(spread=0.6)
    )
    job = Job.of(mixture(2), options, cluster=shared_adapters(2), global_batch=8)
    folded, whole = (job.compiled(fold=fold).graph for fold in (True, False))

    times = [execute(graph, sharing=sharing).makespan_s for graph in (folded, whole)]

    assert len(folded.class_ranks) < len(whole.class_ranks)
    assert folded.flow_counts is not None
    assert times[0] == pytest.approx(times[1], rel=1e-9)


@pytest.mark.parametrize("node", ["dgx-1", "8x-a100-pcie", "8x-mi300x"])
@pytest.mark.parametrize("context", ["ring", "ulysses"])
def test_folding_changes_nothing_on_the_cables_of_nodes(node: str, context: str) -> None:
    """Neighbours of every group send over links as all others do."""
    options = StrategyOptions(cp=4, dp=4, context=context)

    assert check_equal(job_on(cluster(node, 2), options)).classes == 1
