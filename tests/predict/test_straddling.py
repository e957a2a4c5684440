"""Groups that lie across the border of scale-up domains cost what their smaller part takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import wattree
from tests.predict.test_expansion import expanded
from tests.search import jobs
from wattree.closed_form.axis_layout import inside, smallest_part, spanned
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.places import stage_places
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.hardware import Cluster, Node, load_fabric, load_node, load_site
from wattree.lowering.rank_kinds import rank_kinds
from wattree.lowering.topology import MeshTopology
from wattree.predict import predicted, setting_of
from wattree.strategy import AXES, Mesh, Offload, StrategyOptions, Traffic


def result(nodes: int, strategy: dict[str, Any], **keys: Any) -> wattree.Result:
    """Return a step on trays of an NVL72, of a mixture of experts unless `keys` say otherwise."""
    batch = 1024 * strategy.get("dp", 1) * strategy.get("ep", 1)
    return wattree.simulate(
        wattree.job_from_mapping(
            {
                "model": "mixtral-8x7b",
                "data": {"sequence_length": 64, "global_batch": batch},
                "cluster": {"node": "gb200-nvl72", "nodes": nodes},
                "strategy": {"micro_batch": 16, **strategy},
                **keys,
            }
        )
    ).result


def racks(nodes: int, node: Node | None = None) -> Cluster:
    """Return trays of an NVL72, or other nodes, that fill one rack after another."""
    return Cluster(
        node=load_node("gb200-nvl72") if node is None else node,
        nodes=nodes,
        fabric=load_fabric("rail-optimised-ndr"),
        site=load_site("sweden"),
    ).packed()


@pytest.mark.parametrize(("domain", "dp", "tp"), [(8, 3, 4), (8, 12, 1), (72, 16, 8), (8, 5, 3)])
def test_the_smallest_part_is_that_of_all_groups(domain: int, dp: int, tp: int) -> None:
    """The executor counts members; the closed form computes the same from degrees."""
    node = load_node("gb200-nvl72" if domain == 72 else "dgx-h100")
    cluster = racks(-(-dp * tp // node.devices), node)
    mesh = Mesh.of({"dp": dp, "tp": tp})
    shape = MeshTopology(mesh=mesh, cluster=cluster).group(("tp",))
    places = mesh.groups(("tp",)) // domain
    smallest = min(np.unique(row, return_counts=True)[1].min() for row in places)

    assert shape.inside[0] == smallest
    blocks = [range(first, first + tp) for first in range(0, dp * tp, tp)]
    assert min(smallest_part(tp, domain, dp), tp) == smallest == _by_hand(blocks, domain)


@given(st.integers(1, 90), st.integers(1, 24), st.integers(1, 12))
def test_borders_are_found_as_by_hand(block: int, domain: int, blocks: int) -> None:
    """Of parts that a border cuts off; nothing cut off is a whole domain."""
    rows = [range(first, first + block) for first in range(0, block * blocks, block)]

    assert min(smallest_part(block, domain, blocks), block) == min(_by_hand(rows, domain), block)


def _by_hand(blocks: list[range], domain: int) -> int:
    counts = [np.unique(np.array(row) // domain, return_counts=True)[1] for row in blocks]
    return min(domain, *(int(each.min()) for each in counts))


@given(
    degrees=st.tuples(*[st.sampled_from((1, 2, 3, 4, 6, 8, 11))] * 3),
    axes=st.sampled_from(
        [("dp",), ("cp",), ("tp",), ("dp", "cp"), ("cp", "tp"), ("dp", "cp", "tp")]
    ),
)
@example(degrees=(3, 8, 6), axes=("dp",))  # 48 apart: two of three are in one domain
def test_axes_side_by_side_are_cut_as_one_block(
    degrees: tuple[int, ...], axes: tuple[str, ...]
) -> None:
    """Also where replicas, which decide where borders fall, are not among the degrees."""
    found = dict(zip(("dp", "cp", "tp"), degrees, strict=True))
    ranks = int(np.prod(degrees))
    topology = MeshTopology(mesh=Mesh.of(found), cluster=racks(-(-ranks // 4)))
    own = found if "dp" in axes else {**found, "dp": 1}
    values = {axis: np.array([float(own.get(axis, 1))]) for axis in AXES}

    counted, known = topology.group(axes), {"domain": 72, "ranks": np.array([float(ranks)])}
    assert inside(values, axes, **known) == counted.inside
    assert spanned(values, axes, **known) == counted.domains


def test_few_members_apart_take_longer_than_an_even_split() -> None:
    """One adapter gets what 7 others send, not 4 what 4 others do."""
    exposed = [
        result(
            36, {"ep": 8}, place={"devices": f"{first}-{first + 7}"}
        ).time_s.exposed_communication
        for first in (64, 68, 70, 71)
    ]

    assert sorted(exposed) == exposed
    assert exposed[3] > 1.5 * exposed[1] > 4 * exposed[0]


def test_the_same_devices_take_as_long_however_many_the_cluster_has() -> None:
    """A rack and 56 devices of the next are that with 36 trays and with 32."""
    place, strategy = {"devices": "0-127"}, {"dp": 8, "ep": 8, "pp": 2, "sharding": "zero1"}
    times = [result(nodes, strategy, place=place).step_time_s for nodes in (32, 36)]

    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("nodes", "strategy"), [(36, {"dp": 9, "tp": 16}), (24, {"dp": 6, "tp": 16})]
)
def test_estimates_see_the_borders_within_layers(nodes: int, strategy: dict[str, int]) -> None:
    """One group of nine straddles, so the ranks of the whole mesh count."""
    mapping = {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 4096, "global_batch": 4 * strategy["dp"]},
        "cluster": {"node": "gb200-nvl72", "nodes": nodes},
        "strategy": "auto",
    }
    setting = setting_of(wattree.job_from_mapping(mapping), load_calibration(None))
    options = StrategyOptions(**strategy)
    degrees = Degrees.of([options], 4 * strategy["dp"])
    estimated = estimate(setting, options, degrees).step_time_s[0]

    assert estimated == pytest.approx(predicted(setting, options).result.step_time_s, rel=0.05)


#: Degrees on 24 devices of nodes of 8, the last two of which have stages across two nodes.
ACROSS = ({"dp": 24}, {"dp": 12, "pp": 2}, {"dp": 6, "tp": 2, "pp": 2}, {"dp": 3, "pp": 8})


@pytest.mark.parametrize("in_cxl", [False, True])
def test_every_strategy_of_a_space_with_cut_stages_is_estimated_as_alone(*, in_cxl: bool) -> None:
    """Stages that a border cuts have tables of their own, with the columns of the others."""
    job = jobs.setting(model="llama-3.1-8b", nodes=3, batch=24, sequence=1024)
    traffic = Traffic(offload=Offload(optimizer="cxl" if in_cxl else None))
    options = [StrategyOptions(traffic=traffic, **degrees) for degrees in ACROSS]
    job = expanded(job) if in_cxl else job

    together = estimate(job, options[0], Degrees.of(options, 24))
    alone = [estimate(job, each, Degrees.of([each], 24)) for each in options]
    simulated = predicted(job, options[-1], detail=False).result.step_time_s

    assert together.step_time_s == pytest.approx([each.step_time_s[0] for each in alone])
    assert together.energy_j == pytest.approx([each.energy_j[0] for each in alone])
    assert together.step_time_s[-1] == pytest.approx(simulated, rel=0.03)


def test_stages_on_two_pools_are_cut() -> None:
    """Of 3 devices each, on one node of 8 and two others: devices 6 to 8, and 15 to 17."""
    cluster = wattree.job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 24},
            "cluster": {
                "pools": [{"node": "dgx-a100", "nodes": 1}, {"node": "dgx-h100", "nodes": 2}],
                "fabric": "infiniband-hdr-fat-tree",
            },
            "strategy": "auto",
        }
    ).cluster

    places = stage_places(cluster, 24, 8)

    assert places.sum(axis=0) == pytest.approx(np.ones(8))
    assert np.flatnonzero(places[:2].any(axis=0)).tolist() == [2, 5]
    assert places[:, 2] == pytest.approx([2 / 3, 1 / 3, 0, 0])


def test_groups_in_leaves_of_unlike_sizes_offload_to_the_host() -> None:
    """17 nodes leave one alone under a leaf; no collective takes the links to the host."""
    strategy = {"sharding": "zero2", "offload": {"optimizer": "host"}, "micro_batch": 1}
    times = [
        result(
            nodes,
            {"dp": 8 * nodes, **strategy},
            model="gpt2",
            data={"sequence_length": 1024, "global_batch": 8 * nodes},
            cluster={"node": "dgx-a100-40gb", "nodes": nodes},
            software="deepspeed",
        ).step_time_s
        for nodes in (16, 17)
    ]

    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_kinds_of_ranks_of_many_devices_need_little_memory() -> None:
    """Not an array of groups by domains, 256 MB where each rank is a group of its own."""
    cluster = racks(2_000, load_node("dgx-h100"))
    topology = MeshTopology(mesh=Mesh(axes=(("dp", 16_000),)), cluster=cluster)
    tracemalloc.start()
    kinds = rank_kinds(topology, [(), ("dp",)], [])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(kinds.kinds) == 1
    assert peak_bytes < 2**24


@pytest.mark.parametrize("nodes", [19, 24, 40])
def test_named_algorithms_run_on_racks_that_are_used_alike(nodes: int) -> None:
    """They are of equal domains, so nothing decides for unequal ones but devices by number."""
    ring = {"collectives": {"all_reduce": "ring"}, "model": "gpt2"}
    step = result(nodes, {"dp": nodes * 4}, **ring)
    first = result(nodes, {"dp": 32}, **ring, place={"devices": "0-31"})

    assert [line for line in step.assumed if "of the 72 devices of each" in line]
    assert first.step_time_s < step.step_time_s
    with pytest.raises(StrategyError, match="of unequal size"):
        result(nodes, {"dp": nodes * 4}, **ring, place={"devices": f"0-{nodes * 4 - 1}"})


def test_what_is_taken_of_racks_is_said() -> None:
    """It decides which groups stay inside a rack."""
    words = [
        [
            line
            for line in result(nodes, {"dp": nodes * 4}, model="gpt2").assumed
            if "domain" in line
        ]
        for nodes in (18, 16, 32, 19)
    ]

    assert [len(each) for each in words] == [0, 0, 1, 1]
    assert "use 64 of the 72 devices of each scale-up domain" in words[2][0]
    assert "of 72 devices after another, the last with 4 (an estimate; place: " in words[3][0]


def test_the_assumption_says_how_racks_are_used_alike() -> None:
    """With devices of as many racks that are whole."""
    strategy, alike = {"dp": 24, "tp": 4}, "0-47,72-119"
    [words] = [line for line in result(24, strategy).assumed if "domain" in line]

    assert f'place: {{devices: "{alike}"}} on 36 nodes' in words
    assert result(36, strategy, place={"devices": alike}).step_time_s > 0
