"""Nodes of so many cards, by their name alone."""

from __future__ import annotations

import pytest

from wattree import job_from_mapping, simulate
from wattree.errors import WattreeError
from wattree.hardware import default_fabric_name, load_node


@pytest.mark.parametrize(
    ("name", "count", "device"),
    [("2x-rtx-4090", 2, "rtx-4090"), ("3x RTX 4080", 3, "rtx-4080"), ("2x-L40S-48GB", 2, "l40s")],
)
def test_a_name_says_how_many_of_which_card(name: str, count: int, device: str) -> None:
    """All of them share one domain of PCIe, and no price of another number is theirs."""
    node = load_node(name)

    assert node.name == f"{count}x-{device}"
    assert (node.devices, node.scale_up.domain_devices) == (count, count)
    assert (node.device.name, node.scale_up.kind, node.price_usd_per_s) == (device, "pcie", None)
    assert default_fabric_name(name)


def test_a_node_of_the_catalog_goes_first() -> None:
    """Eight in a server have its sockets and switches."""
    assert load_node("8x-rtx-4090").scale_up.sockets == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2x-h100-sxm", "unknown node '2x-h100-sxm'"),  # joined by NVLink: no part of such a node
        ("9x-rtx-4090", "unknown node '9x-rtx-4090'"),
        ("0x-rtx-4090", "unknown node '0x-rtx-4090'"),
        ("2x-foo", "unknown device 'foo'"),
    ],
)
def test_what_is_no_such_node_is_refused(name: str, message: str) -> None:
    """With the names that come near."""
    with pytest.raises(WattreeError, match=message):
        load_node(name)


def test_a_job_runs_on_two_cards() -> None:
    """Replicas exchange gradients over PCIe."""
    job = job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 512, "global_batch": 8},
            "cluster": {"node": "2x-rtx-3090"},
            "strategy": {"dp": 2, "micro_batch": 4},
        }
    )

    assert simulate(job).result.ranks == 2
