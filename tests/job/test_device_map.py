"""Ranks lie on the devices that a job names, in the order that it names."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from wattree.compiler import compile_job
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.lowering import PlacedJob
from wattree.predict import setting_of, simulate
from wattree.sim import execute
from wattree.strategy import Strategy

TREE = {
    "mesh": {"a": 2, "b": 8},
    "schedule": {"name": "1f1b", "micro_batches": 16},
    "tree": {
        "": {"compute": {"batch": "a"}},
        "layers.*.attention.qkv": {"compute": {"out": "b"}},
        "layers.*.attention.out": {"compute": {"in": "b"}},
        "layers.*.mlp.up": {"compute": {"out": "b"}},
        "layers.*.mlp.down": {"compute": {"in": "b"}},
    },
}
SHAPE = {"layers": 2, "hidden": 4096, "heads": 32, "vocab": 4096, "ffn": 16384}


def job(place: dict[str, Any] | None = None, strategy: object = TREE) -> Job:
    """Return a job on two nodes of eight devices."""
    written = {
        "model": {"transformer": SHAPE},
        "data": {"sequence_length": 4096, "global_batch": 128},
        "cluster": {"node": "dgx-h100", "nodes": 2},
        "strategy": strategy,
    }
    return job_from_mapping(written if place is None else {**written, "place": place})


def step_time_s(place: dict[str, Any] | None = None, strategy: object = TREE) -> float:
    """Return the predicted step time. [s]"""
    return simulate(job(place, strategy)).result.step_time_s


def test_an_order_of_axes_says_the_device_of_every_rank() -> None:
    """The first axis is the outermost, whatever the order of the mesh."""
    devices = np.arange(16).reshape(8, 2)  # b outside, a inside

    assert job({"order": ["b", "a"]}).devices == tuple(devices.T.ravel().tolist())
    assert job({"order": ["a", "b"]}).devices is None
    assert job({"nodes": [1, 0], "order": ["a", "b"]}).devices == (*range(8, 16), *range(8))
    preset = {"preset": "tensor", "tp": 8, "dp": 2}
    assert job({"order": ["tp", "dp"]}, preset).devices == tuple(devices.T.ravel().tolist())


def test_an_order_of_devices_is_an_order_of_the_mesh() -> None:
    """Ranks are numbered otherwise, and nothing else."""
    axes = {"stage": 2, "a": 2, "b": 4}
    schedule = {"name": "1f1b", "micro_batches": 16, "axis": "stage"}
    different = []
    for order in permutations(axes):
        by_mesh = {**TREE, "mesh": {axis: axes[axis] for axis in order}, "schedule": schedule}
        by_place = {**TREE, "mesh": axes, "schedule": schedule}
        times = step_time_s(None, by_mesh), step_time_s({"order": list(order)}, by_place)
        if times[0] != pytest.approx(times[1], rel=1e-12):
            different.append((order, times))

    assert different == []


def test_devices_may_change_places_inside_a_node() -> None:
    """They are alike, and so are the links between them."""
    random, usual = np.random.default_rng(3), step_time_s()
    for _ in range(5):
        inside = [random.permutation(8), 8 + random.permutation(8)]
        devices = np.concatenate(inside).tolist()

        assert step_time_s({"devices": devices}) == usual


def test_tensor_groups_across_nodes_are_slower() -> None:
    """Their all-reduces take the network."""
    across = step_time_s({"order": ["b", "a"]})
    by_list = step_time_s({"devices": np.arange(16).reshape(8, 2).T.ravel().tolist()})

    assert across > 1.2 * step_time_s()
    assert by_list == across


def test_axes_across_each_other_are_seen_together() -> None:
    """Pairs along both axes cross the nodes, but all four ranks lie on two nodes."""
    tree = {**TREE, "mesh": {"a": 2, "b": 2}, "schedule": {"micro_batches": 16}}
    shapes = {}
    for name, devices in (("in order", [0, 1, 8, 9]), ("crossed", [0, 8, 9, 1])):
        found = simulate(job({"devices": devices}, tree))
        shapes[name] = found.result.step_time_s

    assert shapes["crossed"] > shapes["in order"]


def test_ranks_whose_groups_are_spread_unequally_have_times_of_their_own() -> None:
    """A step of one rank of each kind takes what it takes with every rank by itself."""
    random, tree = np.random.default_rng(8), {**TREE, "mesh": {"a": 8, "b": 2}}
    different = []
    for _ in range(3):
        placed = job({"devices": random.permutation(16).tolist()}, tree)
        setting = setting_of(placed, load_calibration())
        assert isinstance(placed.strategy, Strategy)
        times = [
            execute(
                compile_job(
                    PlacedJob.of(setting, placed.strategy), placed.cluster, fold=fold, detail=False
                ).graph
            ).end_s.max()
            for fold in (True, False)
        ]
        if times[0] != pytest.approx(times[1], rel=1e-12):
            different.append((placed.devices, times))

    assert different == []


def test_the_busier_adapters_of_an_unequal_group_end_it() -> None:
    """Of eight replicas six share a node: the two beyond it have two adapters for what all send."""
    tree = {**TREE, "mesh": {"b": 2, "a": 8}}
    even, unequal = [*range(4), *range(8, 12), *range(4, 8), *range(12, 16)], list(range(16))
    unequal[6:10] = [8, 9, 6, 7]

    assert step_time_s({"devices": unequal}, tree) > step_time_s({"devices": even}, tree)


@pytest.mark.parametrize(
    ("place", "strategy", "lines"),
    [
        (
            {"devices": [0, 1, 1, 40, 2, 2, *range(3, 13)]},
            TREE,
            (
                "place.devices: found 40, expected numbers from 0 to 15, as the cluster has",
                "place.devices: found 1-2 more than once, expected each number once",
            ),
        ),
        (
            {"devices": [0, 0, *range(1, 10)]},
            TREE,
            (
                "place.devices: found 0 more than once, expected each number once",
                "strategy: the degrees multiply to 16 ranks (a 2 × b 8), expected 11, the devices "
                "of its place; choose degrees that multiply to 11",
            ),
        ),
        (
            {"order": ["b", "c", "b"]},
            TREE,
            (
                "place.order: found ['b', 'c', 'b'], axes that the mesh lacks: c; more than once: "
                "b; without: a; expected each axis of the mesh once, outermost first: a, b",
            ),
        ),
        (
            {"order": ["dp"]},
            "auto",
            ("place.order: found with strategy auto, whose axes are open; name degrees",),
        ),
    ],
)
def test_every_misfit_of_a_map_is_listed(
    place: dict[str, Any], strategy: object, lines: tuple[str, ...]
) -> None:
    """Devices named twice, devices that the cluster lacks, ranks without one, unknown axes."""
    with pytest.raises(JobError) as caught:
        job(place, strategy)

    assert tuple(caught.value.problems) == lines
