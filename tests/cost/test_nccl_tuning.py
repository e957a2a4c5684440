"""NCCL's tuning model: what it would choose, and what its terms add up to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cost.nccl import nccl_choice, nccl_times_s
from wattree.cost.algorithms import Call, Protocol, group_of, schedule_of
from wattree.cost.algorithms.choose import OURS, nccl_system
from wattree.cost.algorithms.tuning import NcclSystem
from wattree.errors import CostError
from wattree.hardware import Cluster, load_fabric, load_node, load_site

LL, LL128, SIMPLE = Protocol
A100 = NcclSystem(
    ranks=8,
    nodes=1,
    compute_capability=80,
    inside_bytes_per_s=240e9,
    between_bytes_per_s=200e9,
    channels=24,
)


def system(**change: object) -> NcclSystem:
    """Return eight A100 in a node, changed."""
    fields = {name: getattr(A100, name) for name in NcclSystem.__slots__}
    return NcclSystem(**(fields | change))  # type: ignore[arg-type]


def place(node: str, nodes: int) -> Cluster:
    """Return nodes of the catalog."""
    return Cluster(
        node=load_node(node),
        nodes=nodes,
        fabric=load_fabric("rail-optimised-ndr"),
        site=load_site("world-average"),
    )


def test_times_are_those_of_the_model_worked_by_hand() -> None:
    """NCCL 2.28, src/graph/tuning.cc, followed with a pencil for 8 A100 and 1 GiB.

    Ring, Simple: 8.4 + 14 x 3.4 us, and 240 GB/s of bus bandwidth times 8 / 14. Ring, LL128:
    14 + 14 x 1.9 us, and 0.92 of that. Ring, LL: 6.6 + 14 x 0.6 us at 87.7 GB/s. Tree, Simple:
    8.4 + 2 x 7 x 4 us at half of 0.92 of 240; 1 GiB is beyond the correction table.
    """
    size = 2.0**30

    times = nccl_times_s("all_reduce", size, A100)

    assert times["ring", SIMPLE] == pytest.approx(56.0e-6 + size / (240e9 * 8 / 14))
    assert times["ring", LL128] == pytest.approx(40.6e-6 + size / (240e9 * 0.92 * 8 / 14))
    assert times["ring", LL] == pytest.approx(15.0e-6 + size / (87.7e9 * 8 / 14))
    assert times["tree", SIMPLE] == pytest.approx(64.4e-6 + size / (240e9 * 0.92 / 2))


def test_between_nodes_the_network_counts() -> None:
    """Ring over 4 nodes of 8: 62 steps, 6 of them between nodes; a plateau factor of 1.4."""
    four = system(ranks=32, nodes=4)
    size = 2.0**30
    latency_us = (8.4 + (62 - 6) * 3.4 + 6 * 14.0) * 1.4

    found = nccl_times_s("all_reduce", size, four)["ring", SIMPLE]

    assert found == pytest.approx(latency_us * 1e-6 + size / (200e9 * 32 / 62))


def test_small_messages_take_ll_and_large_ones_simple() -> None:
    """The order of protocols by size that every NCCL user sees in its logs."""
    chosen = [nccl_choice("all_reduce", size, A100)[1] for size in (1e3, 3e6, 1e9)]

    assert chosen == [LL, LL128, SIMPLE]


def test_trees_win_on_many_nodes_until_rings_fill() -> None:
    """Latency of a tree grows with the logarithm of the nodes, that of a ring with the ranks."""
    many = system(ranks=1024, nodes=128)

    assert nccl_choice("all_reduce", 1e6, many)[0] == "tree"
    assert nccl_choice("all_reduce", 8e10, many)[0] == "ring"


def test_hopper_adds_in_its_switches() -> None:
    """NVLS for large buffers within a node, NVLS with trees between nodes."""
    one, two = (
        nccl_system(place("hgx-h100", n), group_of(place("hgx-h100", n), range(8 * n)))
        for n in (1, 2)
    )

    assert nccl_choice("all_reduce", 1e9, one)[0] == "nvls"
    assert nccl_choice("all_reduce", 1e9, two)[0] in {"ring", "nvls-tree"}


def test_what_is_chosen_can_be_made_into_messages() -> None:
    """Every choice has an algorithm here, which accepts the group it was made for."""
    for nodes in (1, 2, 4):
        cluster = place("hgx-h100", nodes)
        group = group_of(cluster, range(cluster.devices))
        for kind in ("all_reduce", "all_gather", "reduce_scatter"):
            for size in (1e3, 1e6, 1e9):
                call = Call(kind=kind, size_bytes=size, group=group)
                name, _ = nccl_choice(kind, size, nccl_system(cluster, group))
                assert schedule_of(call, OURS.get(name, name)).rounds


@given(
    size=st.floats(1.0, 1e12),
    more=st.floats(1.0, 1e3),
    nodes=st.integers(1, 64),
    inside=st.integers(1, 8),
    capability=st.sampled_from([70, 80, 90, 100]),
    kind=st.sampled_from(["all_gather", "reduce_scatter"]),
)
def test_more_bytes_take_longer(
    *, size: float, more: float, nodes: int, inside: int, capability: int, kind: str
) -> None:
    """All-reduce is left out: NCCL's correction of trees falls and rises with the size."""
    some = system(ranks=nodes * inside, nodes=nodes, compute_capability=capability)

    before, after = (nccl_times_s(kind, each, some) for each in (size, size * more))

    assert before.keys() == after.keys()
    assert all(after[key] >= before[key] * (1 - 1e-12) for key in before)


def test_what_nccl_does_not_know_is_refused() -> None:
    """Collectives it does not tune, devices that are not NVIDIA's, impossible communicators."""
    with pytest.raises(CostError, match="NCCL does not tune all_to_all; it tunes all_reduce"):
        nccl_times_s("all_to_all", 1.0, A100)
    amd = place("8x-mi300x", 1)
    with pytest.raises(CostError, match="no devices like mi300x"):
        nccl_system(amd, group_of(amd, range(8)))
    with pytest.raises(CostError, match="impossible communicator"):
        system(nodes=9)
    with pytest.raises(CostError, match="bandwidths above 0 B/s"):
        system(inside_bytes_per_s=0.0)
