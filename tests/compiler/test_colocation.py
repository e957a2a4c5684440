"""Several processes on a device, in the graph of a step: what is stretched, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.jobs import Job, check_plays, dense, moved_bytes, small_cluster
from wattree.cost.sharing import DeviceSharing, element_fill, matmul_fill
from wattree.errors import StrategyError
from wattree.graph import TaskKind
from wattree.hardware import load_device
from wattree.hardware.mps import sharing_misfit
from wattree.lowering.colocation import colocation_misfits
from wattree.strategy import (
    FIXED_PER_PROCESS,
    MPS,
    TIME_SLICED,
    Colocation,
    MemoryChoice,
    Mesh,
    StrategyOptions,
    TreeNode,
)

ALIKE: dict[str, dict[str, Any]] = {
    "shared batch": {"dp": 2, "processes_per_device": 2},
    "own batches": {"dp": 2, "processes_per_device": 3, "batch_rule": FIXED_PER_PROCESS},
    "in turn": {"dp": 4, "processes_per_device": 2, "device_sharing": TIME_SLICED},
    "accumulated": {"dp": 2, "processes_per_device": 2, "micro_batch": 2, "recompute": "full"},
    "one device": {"processes_per_device": 4, "micro_batch": 4},
}


def of(options: dict[str, Any]) -> Job:
    """Return a job of eager PyTorch, whose launches are slow."""
    return Job.of(dense(3), StrategyOptions(**options), family="pytorch")


@pytest.mark.parametrize("name", ALIKE)
def test_plays_agree_and_memory_balances(name: str) -> None:
    """Folded and whole, merged and task by task, compiled and in plain Python."""
    check_plays(of(ALIKE[name]))


def test_messages_are_those_of_one_process_on_each_device() -> None:
    """Gradients are averaged on the device before one process sends them."""
    own = {"dp": 4, "micro_batch": 4}
    several = {**own, "processes_per_device": 3, "batch_rule": FIXED_PER_PROCESS}
    alone, beside = (of(options).compiled() for options in (own, several))

    assert moved_bytes(beside.graph) == moved_bytes(alone.graph)


def test_a_device_does_the_work_of_all_its_processes() -> None:
    """FLOP of all, memory of one."""
    own = {"dp": 2, "micro_batch": 8}
    several = {**own, "processes_per_device": 3, "batch_rule": FIXED_PER_PROCESS}
    alone, beside = (of(options).compiled().graph for options in (own, several))

    assert beside.flop.sum() == pytest.approx(3 * alone.flop.sum())
    assert beside.static_by_category.tolist() == alone.static_by_category.tolist()
    computes = beside.kind == TaskKind.COMPUTE
    assert (beside.work_s[computes] >= alone.work_s[computes] * (1 - 1e-12)).all()


def test_processes_that_share_a_batch_do_the_work_of_one() -> None:
    """The same samples, in other portions."""
    own = {"dp": 2, "micro_batch": 8}
    several = {"dp": 2, "micro_batch": 2, "processes_per_device": 4}
    alone, beside = (of(options).compiled().graph for options in (own, several))

    assert beside.flop.sum() == pytest.approx(alone.flop.sum())


def test_the_update_averages_gradients_and_is_that_of_all() -> None:
    """(q + 1) + 2 (q - 1) passes over gradients, then q updates, all through one memory."""
    options = {"micro_batch": 16}
    q = 3
    several = {**options, "processes_per_device": q, "batch_rule": FIXED_PER_PROCESS}
    traffic = []
    for chosen in (options, several):
        compiled = of(chosen).compiled()
        graph = compiled.graph
        names = np.array(graph.names)[graph.name_ids]
        traffic.append(float(graph.memory_traffic_bytes[names == "optimizer"].sum()))
    parameters = compiled.program.model.parameters

    gradients = parameters * 4.0  # eager PyTorch reduces in fp32
    assert traffic[1] == pytest.approx(q * traffic[0] + (3 * q - 1) * gradients, rel=1e-6)


@given(m=st.integers(1, 10**6), n=st.integers(1, 10**4), k=st.integers(1, 10**5))
def test_products_fill_no_more_than_a_device(m: int, n: int, k: int) -> None:
    """And the more, the larger they are."""
    size = [np.array([float(value)]) for value in (m, n, k)]
    one = np.ones(1)
    fill = float(matmul_fill(*size, one, 108)[0])
    larger = float(matmul_fill(size[0] * 2, *size[1:], one, 108)[0])

    assert 0 < fill <= larger <= 1


@given(elements=st.floats(1.0, 1e10), units=st.integers(1, 200))
def test_elementwise_kernels_fill_no_more_than_a_device(elements: float, units: int) -> None:
    """One block of 512 elements at least, all units at most."""
    sharing = DeviceSharing(units=units, block_elements=512.0, contention=0.0, launch_fill=0.0)
    fill = float(element_fill(np.array([elements]), sharing)[0])

    assert 1 / units <= fill <= 1


REFUSED = {
    "fsdp": ({"fsdp": 2, "sharding": "zero3"}, "strategy.fsdp: found 2 together with"),
    "tensor": ({"tp": 2}, "strategy.tp: found 2 together with"),
    "stages": ({"pp": 2}, "strategy.pp: found 2 together with"),
    "zero": ({"dp": 2, "sharding": "zero1"}, "strategy.sharding: found 'zero1' together with"),
    "threads": ({"dp": 2, "single_process": True}, "strategy.single_process: found together with"),
    "statistics": ({"sync_batch_norm": True}, "strategy.sync_batch_norm: found together with"),
    "batch": ({"processes_per_device": 3}, "expected a number that divides it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_beside_it_is_refused(name: str) -> None:
    """In one line, with what to do."""
    options, said = REFUSED[name]
    with pytest.raises(StrategyError) as caught:
        of({"processes_per_device": 2, **options}).compiled()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("device", "sharing", "said"),
    [
        ("mi300x", MPS, "under MPS, which a mi300x does not have"),
        ("mi300x", TIME_SLICED, ""),
        ("tpu-v5p", TIME_SLICED, "takes one process"),
        ("p100-sxm2-16gb", MPS, "takes 16 MPS clients"),
        ("v100-sxm2-16gb", MPS, "takes 48 MPS clients"),
        ("t4", MPS, "takes 60 MPS clients"),
        ("epyc-7742", MPS, ""),
    ],
)
def test_devices_are_shared_as_they_can_be(device: str, sharing: str, said: str) -> None:
    """MPS is NVIDIA's, and takes so many clients; other accelerators than GPUs take one process."""
    found = sharing_misfit(load_device(device), 61, mps=sharing == MPS)
    assert said in found if said else not found


def test_processes_beyond_the_cores_of_the_host_launch_no_faster() -> None:
    """8 processes for each of 8 cores and one for each launch at the same rate."""
    sharing = DeviceSharing(
        units=108, block_elements=512.0, contention=0.0, launch_fill=0.0, host_cores=8.0
    )
    slowdowns = [sharing.of(q, in_turn=False).host_slowdown for q in (1, 8, 64)]
    assert slowdowns == [1.0, 1.0, 8.0]
    rates = of({"dp": 2}).placed.rates
    assert isinstance(rates, tuple)
    alone, shared = (replace(rates[0], sharing=sharing).shared(q, in_turn=False) for q in (8, 64))
    assert shared.launch_s == 8.0 * alone.launch_s


def test_a_tree_is_refused_for_the_same_reasons() -> None:
    """Axes, shards, statistics, one process for all."""
    tree = of({"dp": 2}).strategy.tree
    shards = TreeNode(memory=MemoryChoice(optimizer=("dp",)), sync_batch_norm=True)
    strategy = replace(
        of({"dp": 2}).strategy,
        mesh=Mesh.of({"dp": 2, "tp": 2}),
        tree=replace(tree, nodes={**tree.nodes, "head": shards}),
        single_process=True,
        colocation=Colocation(processes=2),
    )

    assert set(colocation_misfits(strategy, small_cluster(4))) == {
        "strategy.mesh.tp",
        "strategy.tree.'head'.memory",
        "strategy.tree.'head'.sync_batch_norm",
        "strategy.single_process",
    }
