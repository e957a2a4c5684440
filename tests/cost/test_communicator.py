"""Memory that communicators take, against what others measured."""

from __future__ import annotations

import numpy as np
import pytest

from wattree.cost.communicator import communicator_bytes
from wattree.hardware import load_node

MIB = 2.0**20
RING = 24 * 12 * MIB


def test_an_exchange_in_a_node_takes_what_was_measured() -> None:
    """NVIDIA/nccl issue 1685: from 1.06 GB to 4.34 GB with the first all-to-all of 8 H100."""
    _, found = communicator_bytes({"ep": 8}, load_node("dgx-h100"))

    assert found == 7 * 32 * 12 * MIB
    assert found == pytest.approx(4.34e9 - 1.06e9, rel=0.15)
    assert found < 4.34e9 - 1.06e9  # a lower bound


def test_rings_take_the_same_however_many_ranks() -> None:
    """Each rank hears from one other (NVIDIA/nccl issue 986); each kind of group has its ring."""
    node = load_node("dgx-a100")
    few, many = (communicator_bytes({"dp": ranks}, node)[0] for ranks in (2, 1024))

    assert few == many == 2 * RING  # of all ranks, and of the replicas
    assert communicator_bytes({"dp": 2, "tp": 4}, node)[0] == 3 * RING
    assert communicator_bytes({"dp": 2, "tp": 4, "cp": 2}, node)[0] == 4 * RING


def test_arrays_of_degrees_give_what_each_gives_alone() -> None:
    """Screening asks for many strategies at once."""
    node = load_node("dgx-h100")
    degrees = {
        "dp": np.array([1, 8, 2, 1]),
        "tp": np.array([1, 1, 4, 4]),
        "pp": np.array([1, 1, 1, 2]),
    }
    together = communicator_bytes(degrees, node)

    for at in range(4):
        alone = communicator_bytes(
            {axis: int(values[at]) for axis, values in degrees.items()}, node
        )
        assert [part[at] for part in np.broadcast_arrays(*together)] == [float(p[0]) for p in alone]


def test_fewer_links_have_fewer_channels() -> None:
    """V100 with six links: 12, as NCCL's log says; cards on PCIe have four."""
    assert communicator_bytes({"dp": 8}, load_node("dgx-1"))[0] == 2 * 12 * 12 * MIB
    assert communicator_bytes({"dp": 8}, load_node("8x-rtx-2080-ti"))[0] == 2 * 4 * 12 * MIB


def test_a_rank_alone_has_no_buffers() -> None:
    """Nor does a device on which no NCCL runs."""
    for degrees, node in (({"dp": 1}, "dgx-h100"), ({"dp": 8}, "8x-mi300x")):
        assert sum(float(part[0]) for part in communicator_bytes(degrees, load_node(node))) == 0.0
