"""Which algorithm and protocol a collective has, alone and among many strategies."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cost.collective_places import SIZE, asked, cost, ideal, shape_of
from tests.cost.nccl import nccl_choice
from tests.cost.switches import cluster
from wattree.cost import GroupShape
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.tuning import (
    NCCL_KEYS,
    NcclSystem,
    nccl_columns,
    nccl_expected_s,
)
from wattree.cost.collective_model import CollectiveModel
from wattree.errors import StrategyError
from wattree.strategy import Mesh


@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    sizes=st.lists(st.integers(1, 2**34).map(float), min_size=1, max_size=20),
    per_node=st.integers(1, 8),
    nodes=st.integers(2, 64),
    capability=st.sampled_from([60, 70, 80, 90, 100]),
)
@settings(max_examples=60)
def test_many_sizes_are_chosen_for_as_one_by_one(
    kind: str, sizes: list[float], per_node: int, nodes: int, capability: int
) -> None:
    """Arrays of sizes only save time."""
    system = NcclSystem(
        ranks=per_node * nodes,
        nodes=nodes,
        compute_capability=capability,
        inside_bytes_per_s=4.5e11,
        between_bytes_per_s=5e10 * per_node,
        nvls=capability >= 90 and per_node > 2,
    )

    columns = nccl_columns(kind, [system]).of(np.zeros(len(sizes), dtype=np.int64))
    fastest = np.argmin(nccl_expected_s(kind, np.array(sizes), columns), axis=0)

    chosen = [nccl_choice(kind, size, system) for size in sizes]
    assert [NCCL_KEYS[k] for k in fastest.tolist()] == chosen


def test_nccl_takes_other_protocols_for_other_sizes() -> None:
    """Small calls pay latency, large ones bytes; both in one array."""
    place = cluster("dgx-h100", 4)
    model = CollectiveModel(cluster=place, requests=asked("nccl"))
    sizes = np.array([1e3, 1e9])
    shape = shape_of(place, ((32, 1),))
    both = GroupShape(
        ranks=np.repeat(shape.ranks, 2),
        inside=np.repeat(shape.inside, 2),
        spans=tuple((np.repeat(d, 2), np.repeat(s, 2)) for d, s in shape.spans),
        filled=np.array([8.0, 8.0]),
    )

    found = model.cost("all_reduce", sizes, both, ideal(place))

    assert found.latency_s[0] < found.latency_s[1]
    for index, size in enumerate(sizes):
        one = model.cost("all_reduce", np.array([size]), shape, ideal(place))
        assert found.latency_s[index] == one.latency_s[0]
        assert found.work_s[index] == one.work_s[0]


@given(draw=st.data())
@settings(max_examples=40)
def test_a_layout_is_the_groups_of_a_mesh(draw: st.DataObject) -> None:
    """Whatever the order of the axes: the first group, and who begins the others."""
    degrees = draw.draw(st.lists(st.integers(1, 4), min_size=3, max_size=3))
    mesh = Mesh(axes=tuple(zip(("dp", "cp", "tp"), degrees, strict=True)))
    axes = draw.draw(st.lists(st.sampled_from(["dp", "cp", "tp"]), min_size=1, unique=True))
    strides = {"dp": degrees[1] * degrees[2], "cp": degrees[2], "tp": 1}
    spans = sorted((strides[axis], mesh.degree(axis)) for axis in axes)
    groups = mesh.groups(axes)

    layout = GroupLayout(
        spans=tuple((degree, stride) for stride, degree in spans if degree > 1),
        domain=mesh.ranks,
        leaf=mesh.ranks,
        filled=mesh.ranks,
    )

    assert layout.offsets.tolist() == groups[0].tolist()
    assert layout.bases().tolist() == sorted(groups[:, 0].tolist())


@given(
    shape=st.permutations((4, 4, 8)),
    cuts=st.sets(st.integers(1, 6)),
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]),
)
@settings(max_examples=30)
def test_a_mesh_on_a_torus_takes_what_its_links_allow_however_axes_are_listed(
    shape: list[int], cuts: set[int], kind: str
) -> None:
    """All devices receive what others hold; axes of the mesh fill those of the torus if any do."""
    bounds = [0, *sorted(cuts), 7]
    mesh = tuple((2 ** (last - first), 2**first) for first, last in pairwise(bounds))
    pod = cluster("tpu-v5p-host", 32)

    def work_s(lengths: tuple[int, ...], span: tuple[int, int]) -> float:
        node = replace(pod.node, scale_up=replace(pod.node.scale_up, shape=lengths))
        place = replace(pod, node=node)
        group = shape_of(place, (span,), mesh=mesh)
        model = CollectiveModel(cluster=place)
        return float(model.cost(kind, np.array([SIZE]), group, ideal(place)).work_s[0])

    times = [work_s(tuple(shape), span) for span in mesh]

    assert times == [work_s((4, 4, 8), span) for span in mesh]
    passes = 2.0 if kind == "all_reduce" else 1.0
    for (ranks, _), time in zip(mesh, times, strict=True):
        least = passes * (ranks - 1) / ranks * SIZE / pod.node.scale_up.bandwidth_bytes_per_s
        assert time >= least * (1 - 1e-9)


def test_the_inner_axis_of_a_mesh_need_not_lie_on_the_longest_axis_of_a_torus() -> None:
    """Of 4x4x8, 4 ranks are one axis and 32 are the two others, whose links they have alone."""
    pod = cluster("tpu-v5p-host", 32)
    port = pod.node.scale_up.bandwidth_bytes_per_s
    mesh = ((4, 1), (32, 4))

    model = CollectiveModel(cluster=pod)
    times = [
        model.cost("all_gather", np.array([SIZE]), shape_of(pod, (span,), mesh=mesh), ideal(pod))
        for span in mesh
    ]

    shares = [1 / 3, 2 / 3]  # of a device's links, two for each axis
    assert [float(time.work_s[0]) for time in times] == pytest.approx(
        [(n - 1) / n * SIZE / (port * part) for (n, _), part in zip(mesh, shares, strict=True)]
    )


def test_an_algorithm_that_cannot_serve_a_group_is_refused_with_what_can() -> None:
    """Every third device, five of them, over two nodes: shares are not equal."""
    place = cluster("dgx-h100", 4)

    with pytest.raises(StrategyError) as raised:
        cost(place, "all_reduce", ((5, 3),), asked("hierarchical"))

    assert raised.value.misfits == {
        "collectives.all_reduce": "algorithm 'hierarchical' needs as many ranks in every domain, "
        "found 2 to 3; use 'ring', 'tree' or 'direct'"
    }


def test_among_many_strategies_such_a_group_is_nobodys_choice() -> None:
    """Screening goes on; the figure is finite, so that it spoils no other."""
    place = cluster("dgx-h100", 4)
    model = CollectiveModel(cluster=place, requests=asked("hierarchical"))

    found = model.cost("all_reduce", np.ones(1), shape_of(place, ((5, 3),)), ideal(place))

    assert 1e6 < found.work_s[0] < np.inf


@pytest.mark.parametrize(("node", "far", "slower"), [("dgx-1", 1, 6.0), ("dgx-h100", 1, 1.0)])
def test_a_message_inside_a_node_has_the_cable_to_its_receiver(
    node: str, far: int, slower: float
) -> None:
    """Neighbours on DGX-1 share one of six NVLinks; behind a switch a port is theirs whole."""
    place = cluster(node, 1)

    found = CollectiveModel(cluster=place).transfer_stretch(np.array([float(far)]), np.full(1, 8.0))

    assert found[0] == pytest.approx(slower)
