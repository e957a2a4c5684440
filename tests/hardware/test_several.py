"""Nodes of so many cards, by their name alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattree import job_from_mapping, simulate
from wattree.errors import WattreeError
from wattree.hardware import load_node, node_names
from wattree.hardware.load import default_fabric_name


@pytest.mark.parametrize(
    ("name", "count", "device"),
    [
        ("2x-v100-pcie", 2, "v100-pcie-32gb"),
        ("2x-rtx-4090", 2, "rtx-4090"),
        ("3x RTX 4080", 3, "rtx-4080"),
        ("2x-L40S-48GB", 2, "l40s"),
    ],
)
def test_a_name_says_how_many_of_which_card(name: str, count: int, device: str) -> None:
    """All of them share one domain of PCIe, and no price of another number is theirs."""
    node = load_node(name)

    assert node.name == f"{count}x-{device}"
    assert (node.devices, node.scale_up.domain_devices) == (count, count)
    assert (node.device.name, node.scale_up.kind, node.price_usd_per_s) == (device, "pcie", None)
    assert default_fabric_name(name)


def test_a_node_of_the_catalog_goes_first() -> None:
    """Eight in a server have its sockets and switches, whatever the server is called."""
    assert load_node("8x-rtx-4090").scale_up.sockets == 2
    assert load_node("4x-rtx-a6000").name == "4x-a6000"
    assert load_node("8x-a100-pcie-80gb").name == "8x-a100-pcie"


def test_few_cards_of_a_server_have_their_part_of_its_host() -> None:
    """What it draws was estimated by the power of its devices."""
    two, eight = load_node("2x-a100-pcie-80gb"), load_node("8x-a100-pcie")

    assert two.host.busy_w == pytest.approx(eight.host.busy_w / 4)
    assert load_node("2x-rtx-4090").host == load_node("workstation-rtx-4090").host


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "2x-h100-sxm",
            "unknown node '2x-h100-sxm'.*dgx-h100.*place: {devices: 0-1}",
        ),  # joined by NVLink: no part of it
        ("2x-h100", "unknown node '2x-h100'.*dgx-h100.*; for 2 .* place: {devices: 0-1}"),
        ("RTX 3060", "unknown node 'RTX 3060'.* 2x-rtx-3060, .*workstation-rtx-3060"),
        ("5x-rtx-4090", "unknown node '5x-rtx-4090'"),  # they share sockets: no one says how
        ("0x-rtx-4090", "unknown node '0x-rtx-4090'"),
        ("m3-ultra", "unknown node 'm3-ultra'.*; of any other give files of your own, as docs/"),
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


def test_homes_can_keep_the_optimizer_in_host_memory() -> None:
    """Their devices are small, and the host has to be fast enough to say how long it takes."""
    nodes = [name for name in node_names() if name.startswith("workstation-")]
    rates = {load_node(name).host.memory_bytes_per_s for name in [*nodes, "2x-rtx-4090"]}

    assert rates == {2 * 8 * 5600e6}  # two channels of eight bytes, DDR5-5600


def test_the_catalog_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are read by the hundred, and looking into every file took longer than an estimate."""
    known = load_node("8x-h100")
    monkeypatch.setattr(Path, "glob", lambda *_: pytest.fail("searched again"))

    assert load_node("8x-h100") == known
