"""Nodes that are like another, and parts of one."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest

from tests.hardware.user_files import NODE
from wattree.errors import WattreeError
from wattree.files import read_yaml
from wattree.hardware import load_node
from wattree.hardware.load import default_fabric_name
from wattree.hardware.names import CATALOG, node_names
from wattree.hardware.schema import hardware_schema

LIKE = """\
name: mine
title: Ours
like: dgx-h100
sources: {guide: "Our order, 2026"}
nics: {value: 4, source: guide}
host:
  memory: {value: "1 TB", source: guide}
"""


def test_a_node_has_what_it_leaves_out_of_the_one_that_it_is_like(folder: Path) -> None:
    """With the sources of both, however they call them; a price is no one else's."""
    path = folder / "mine.yaml"
    path.write_text(LIKE)
    own, other = load_node(path), load_node("dgx-h100")

    assert (own.name, own.nics, own.host.memory_bytes) == ("mine", 4, 1e12)
    assert own.host.busy_w == other.host.busy_w
    assert own.device == other.device
    assert own.price_usd_per_s is None
    assert own.sources["nics"] == "Our order, 2026"
    assert own.sources["devices"] == other.sources["devices"]
    assert default_fabric_name(path) == default_fabric_name("dgx-h100")
    assert jsonschema.Draft202012Validator(hardware_schema("node")).is_valid(read_yaml(path))


def test_a_file_may_be_like_a_file_elsewhere(folder: Path) -> None:
    """Its device is found from where it is named."""
    (folder / "ours").mkdir()
    (folder / "whole.yaml").write_text(NODE)
    path = folder / "ours" / "mine.yaml"
    path.write_text(LIKE.replace("dgx-h100", "../whole.yaml"))

    assert load_node(path).device.name == "my-card"


def test_a_file_may_be_like_some_number_of_cards(folder: Path) -> None:
    """As jobs name such nodes, which no file of the catalog holds."""
    path = folder / "mine.yaml"
    path.write_text(LIKE.replace("dgx-h100", "2x-rtx-3090"))
    own, other = load_node(path), load_node("2x-rtx-3090")

    assert (own.devices, own.device, own.nics) == (2, other.device, 4)


def test_a_part_of_a_node_has_its_part_of_the_host() -> None:
    """Of power and rates; what it is rented with its file says."""
    part, whole = load_node("g5.12xlarge"), load_node("g5.48xlarge")

    assert (part.devices, part.scale_up.domain_devices, part.scale_up.sockets) == (4, 4, 1)
    assert part.host.memory_bytes_per_s == pytest.approx((whole.host.memory_bytes_per_s or 0) / 2)
    assert part.host.busy_w == pytest.approx(whole.host.busy_w / 2)
    assert part.host.cpu_cores == 24
    assert part.price_usd_per_s == pytest.approx(5.672 / 3600)


def test_parts_of_nodes_say_their_own_processors_and_memory() -> None:
    """Those of the whole would offload to memory that no one rented."""
    silent = []
    for name in node_names():
        own = read_yaml(CATALOG / "nodes" / f"{name}.yaml")
        if "like" in own and "devices" in own:
            host, whole = own.get("host", {}), load_node(own["like"]).devices
            if own["devices"]["value"] != whole and not {"cpu_cores", "memory"} <= set(host):
                silent.append(name)

    assert silent == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dgx-h100", "dgx-h1000", "mine.yaml: like: unknown node 'dgx-h1000'"),
        ("dgx-h100", "[1]", "like: found [1], expected a node of the catalog, or a file"),
        ("dgx-h100", "./mine.yaml", "which is like another, expected a complete file"),
        ("nics:", "nicks:", "nicks: unknown key; did you mean 'nics'?"),
        ("source: guide", "source: gide", "nics.source: found 'gide', expected a key of 'sources'"),
    ],
)
def test_a_node_that_cannot_be_completed_is_refused(
    folder: Path, old: str, new: str, message: str
) -> None:
    """Like any other file."""
    path = folder / "mine.yaml"
    path.write_text(LIKE.replace(old, new, 1))

    with pytest.raises(WattreeError, match=re.escape(message)):
        load_node(path)
