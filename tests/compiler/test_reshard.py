"""Layout changes between any two placements: data arrive, and nothing cheaper exists."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from tests.compiler.jobs import small_cluster
from tests.compiler.reshard_reference import execute, expected, fewest_elements, given
from wattree.cost import load_calibration, software_family
from wattree.cost.rates import pool_rates
from wattree.errors import StrategyError
from wattree.hardware import Precision
from wattree.lowering.collective_costs import collective_costs
from wattree.lowering.program import CollectiveKind
from wattree.lowering.reshard import DeviceGrid, LinkTime, TensorPlacement, plan_reshard
from wattree.lowering.reshard.moves import MoveKind
from wattree.lowering.reshard.steps import ReshardStep
from wattree.lowering.topology import MeshTopology
from wattree.strategy import Mesh

#: How many changes are drawn, and how many under `make soak`.
CASES, SOAKED = 150, 1000
SHAPES = ((12,), (7,), (6, 4), (5, 8))
MESHES = (
    (("a", 2),),
    (("a", 3),),
    (("a", 2), ("b", 2)),
    (("a", 2), ("b", 3)),
    (("a", 4), ("b", 2)),
)


def elements(step: ReshardStep) -> float:
    """Price a step by what is sent."""
    return float(step.sent_elements)


def placement(random: Random, axes: list[str], dims: int) -> TensorPlacement:
    """Return any placement."""
    slots = {axis: random.choice((*range(dims), "replica", "sum")) for axis in axes}
    random.shuffle(axes)
    return TensorPlacement(
        shards=tuple(tuple(a for a in axes if slots[a] == dim) for dim in range(dims)),
        partial=frozenset(axis for axis in axes if slots[axis] == "sum"),
    )


def grids(random: Random) -> tuple[DeviceGrid, DeviceGrid]:
    """Return two meshes on devices that are the same, apart, or in part the same."""
    names = iter("abcdef")
    found, pool = [], list(range(12))
    for degrees in (random.choice(MESHES), random.choice(MESHES)):
        mesh = Mesh(axes=tuple((next(names), degree) for _, degree in degrees))
        found.append(DeviceGrid(mesh=mesh, devices=tuple(random.sample(pool, mesh.ranks))))
    first, second = found
    kind = random.choice(("same", "apart", "any"))
    if kind == "same":
        return first, first
    if kind == "apart":
        others = [device + 100 for device in second.devices]
        return first, DeviceGrid(mesh=second.mesh, devices=tuple(others))
    return first, second


def test_data_arrive_and_no_sequence_sends_less(*, soaking: bool) -> None:
    """Random changes, executed on arrays rank by rank, against the best of all sequences."""
    random, wrong, kinds = Random(11), [], Counter[MoveKind]()
    for number in range(SOAKED if soaking else CASES):
        shape = random.choice(SHAPES)
        grid, other = grids(random)
        have, want = (placement(random, list(g.axes), len(shape)) for g in (grid, other))
        steps = plan_reshard(shape, (grid, have), (other, want), elements)
        whole = np.random.default_rng(number).integers(-99, 99, shape)
        held, sent = given(whole, grid, have, seed=number), 0
        for step in steps:
            held, moved = execute(step, held)
            sent += moved
            kinds[step.kind] += 1
        best = fewest_elements(shape, (grid, have), (other, want))
        if not expected(whole, other, want, held) or sent != best:
            wrong.append((number, sent, best, have, want, [step.kind.value for step in steps]))

    assert wrong == []
    assert set(kinds) == set(MoveKind)


def cluster_links(nodes: int = 2, per_node: int = 4) -> LinkTime:
    """Return the links of small nodes."""
    cluster = small_cluster(nodes * per_node, per_node=per_node)
    (rates,) = pool_rates(
        cluster, software_family("megatron-core"), Precision.BF16, load_calibration()
    )
    return LinkTime(cluster=cluster, rates=rates, element_bytes=2.0)


def on(devices: range, *axes: tuple[str, int]) -> DeviceGrid:
    """Return a mesh on devices in order."""
    return DeviceGrid(mesh=Mesh(axes=axes), devices=tuple(devices))


def whole(dims: int = 1) -> TensorPlacement:
    """Return a placement of replicas."""
    return TensorPlacement(shards=((),) * dims)


ROWS = TensorPlacement(shards=(("x",),))


def test_parts_cross_the_network_once_and_are_gathered_in_the_node() -> None:
    """Every device of the other node wants all; sending all to each would take four times that."""
    links = cluster_links()
    first, second = on(range(4), ("x", 4)), on(range(4, 8), ("x", 4))

    steps = plan_reshard((2**26,), (first, ROWS), (second, whole()), links)

    assert [step.kind for step in steps] == [MoveKind.TRANSFER, MoveKind.ALL_GATHER]
    assert steps[0].sent_elements == 2**26


def test_small_tensors_are_sent_in_one_step() -> None:
    """A second step would cost its latency."""
    links = cluster_links()
    first, second = on(range(4), ("x", 4)), on(range(4, 8), ("x", 4))

    steps = plan_reshard((16,), (first, ROWS), (second, whole()), links)

    assert [step.kind for step in steps] == [MoveKind.TRANSFER]


def test_the_nearest_holder_sends() -> None:
    """Both nodes hold the tensor, so nothing crosses between them."""
    links = cluster_links()
    source, target = on(range(0, 8, 2), ("x", 4)), on(range(1, 8, 2), ("x", 4))

    (step,) = plan_reshard((64,), (source, whole()), (target, whole()), links)

    pairs = {
        (message.sender // 4, message.receiver // 4) for message in step.messages(links.distance)
    }
    assert pairs == {(0, 0), (1, 1)}


def test_collectives_take_what_they_take_in_a_step() -> None:
    """An all-reduce is an all-reduce, wherever it comes from."""
    links, grid = cluster_links(), on(range(8), ("x", 8))
    summands = TensorPlacement(shards=((),), partial=frozenset({"x"}))

    (step,) = plan_reshard((2**20,), (grid, summands), (grid, whole()), links)

    group = MeshTopology(mesh=grid.mesh, cluster=links.cluster).group(("x",))
    size_bytes = np.array([2.0 * 2**20])
    cost = collective_costs(CollectiveKind.ALL_REDUCE, size_bytes, group, links.rates)
    assert step.kind is MoveKind.ALL_REDUCE
    assert links(step) == float((cost.latency_s + cost.work_s)[0])


def test_every_misfit_of_placements_is_listed() -> None:
    """Devices, dims and axes of both ends."""
    grid = DeviceGrid(mesh=Mesh(axes=(("x", 2), ("y", 2))), devices=(0, 1, 1))
    have = TensorPlacement(shards=(("x",), ("x",), ("z",)))
    want = TensorPlacement(shards=(("q",), ()))

    with pytest.raises(StrategyError) as caught:
        plan_reshard((4, 4), (grid, have), (on(range(4), ("x", 2), ("y", 2)), want), elements)

    assert caught.value.misfits == {
        "source.devices": "found 3 devices, 2 of them distinct, for 4 ranks; name one for each "
        "rank",
        "source.placement.shards": "found 3 dims, expected 2, as the tensor has",
        "source.placement.x": "found more than once; name each axis once",
        "source.placement.z": "found an axis that the mesh lacks; it has x, y",
        "target.placement.q": "found an axis that the mesh lacks; it has x, y",
    }
