"""Memory that communicators and contexts take, against what others measured."""

from __future__ import annotations

import pytest

from wattree.cost.communicator import Communicator, communicator_bytes, context_bytes
from wattree.hardware import load_device

MIB = 2.0**20


def group(*, ranks: int = 8, peers_inside: int = 7, exchanges: bool = False) -> Communicator:
    """Return a group of one node unless told otherwise."""
    return Communicator(name="tp", ranks=ranks, peers_inside=peers_inside, exchanges=exchanges)


def test_an_exchange_in_a_node_takes_what_was_measured() -> None:
    """NVIDIA/nccl issue 1685: from 1.06 GB to 4.34 GB with the first all-to-all of 8 H100."""
    found = communicator_bytes(group(exchanges=True), load_device("h100-sxm-80gb"))

    assert found == 7 * 32 * 12 * MIB
    assert found == pytest.approx(4.34e9 - 1.06e9, rel=0.15)
    assert found < 4.34e9 - 1.06e9  # a lower bound


def test_a_ring_takes_the_same_however_many_ranks() -> None:
    """Each rank hears from one other (NVIDIA/nccl issue 986)."""
    device = load_device("a100-sxm-80gb")
    few, many = (communicator_bytes(group(ranks=n), device) for n in (2, 1024))

    assert few == many == 24 * 12 * MIB


def test_fewer_links_have_fewer_channels() -> None:
    """V100 with six links: 12, as NCCL's log says."""
    assert communicator_bytes(group(), load_device("v100-sxm2-32gb")) == 12 * 12 * MIB


def test_a_rank_alone_has_no_buffers() -> None:
    """Nor does a device of which no source tells."""
    assert communicator_bytes(group(ranks=1), load_device("h100-sxm-80gb")) == 0.0
    assert communicator_bytes(group(), load_device("mi300x")) == 0.0
    assert context_bytes(load_device("mi300x")) == 0.0
    assert context_bytes(load_device("h100-sxm-80gb")) == 300e6
