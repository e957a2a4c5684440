"""Any change of a hardware file loads or is refused; hosts are as their files describe them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.hardware.user_files import DEVICE, LOADERS, TEXTS
from wattree.errors import JobError, WattreeError
from wattree.hardware import Node, load_node
from wattree.hardware.names import CATALOG
from wattree.hardware.node import HostPart

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1 GB", "-1 W", "5 us", "sheet", "estimate: x", "pcie", "h100", "a/b.yaml"])
)
keys = st.text(max_size=5) | st.sampled_from(
    [
        "value",
        "source",
        "sources",
        "memory",
        "matrix_peak",
        "bf16",
        "scale_up",
        "host",
        "name",
        "pue",
    ]
)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@given(data=st.data(), kind=st.sampled_from(sorted(LOADERS)))
def test_any_change_of_a_good_file_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    """Whatever stands at any place, no traceback: a hundred wrong files, each nearly right."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "my-card.yaml").write_text(DEVICE)
    yaml = YAML(typ="safe", pure=True)
    content = yaml.load(TEXTS[kind])
    place = content
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            break
        place = place[key]
    place[data.draw(st.just(key) | keys)] = data.draw(trees)
    path = folder / "changed.yaml"
    with path.open("w", encoding="utf-8") as file:
        yaml.dump(content, file)
    try:
        outcome = LOADERS[kind](path).name
    except WattreeError as error:
        outcome = str(error)

    assert outcome


@given(content=st.binary(max_size=200), kind=st.sampled_from(sorted(LOADERS)))
def test_any_bytes_load_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: str
) -> None:
    """A picture, an archive, a truncated download."""
    path = tmp_path_factory.mktemp("fuzz") / "any.yaml"
    path.write_bytes(content)

    with pytest.raises(WattreeError):
        LOADERS[kind](path)


@given(name=st.text(max_size=30))
def test_any_name_is_known_or_refused(name: str) -> None:
    """Names come from job files."""
    for load in LOADERS.values():
        try:
            outcome = load(name).name
        except WattreeError as error:
            outcome = str(error)
        assert outcome


def parts_of(tmp_path: Path, host: str) -> Node:
    """Return a user's node whose host has more keys."""
    path = tmp_path / "dgx.yaml"
    text = (CATALOG / "nodes" / "dgx-1.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("price:", f"{host}price:"), encoding="utf-8")
    return load_node(path)


def test_a_host_is_told_apart_as_far_as_its_file_does(tmp_path: Path) -> None:
    """One figure stands for rest and training; what is left is the rest."""
    given = (
        "  conversion: {value: 1.05, source: guide}\n  fans: {value: 0.1, source: guide}\n"
        '  parts:\n    processors: {value: "270 W", source: guide}\n'
        '    processors_idle: {value: "50 W", source: guide}\n'
        '    adapters: {value: "60 W", source: guide}\n'
    )
    node = parts_of(tmp_path, given)
    host = node.host

    assert host.parts["processors"] == HostPart(idle_w=50.0, busy_w=270.0)
    assert host.parts["adapters"] == HostPart(idle_w=60.0, busy_w=60.0)
    assert host.rest == HostPart(idle_w=34.0, busy_w=30.0)
    assert host.behind == pytest.approx(1.1 * 1.05)
    assert node.sources["host.parts.processors"].startswith("NVIDIA DGX-1")
    assert load_node("dgx-1").host.behind == 1.0


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (
            '  parts:\n    processors: {value: "400 W", source: guide}\n',
            "host.parts: found 400 W for processors together, expected at most host.busy, 360 W",
        ),
        (
            '  parts:\n    memory_idle: {value: "10 W", source: guide}\n',
            "host.parts.memory: is needed with memory_idle",
        ),
        ('  parts:\n    pumps: {value: "10 W", source: guide}\n', "host.parts.pumps: unknown key"),
        ("  conversion: {value: 0.96, source: guide}\n", "expected 1 to 1.5"),
        ("  fans: {value: -0.1, source: guide}\n", "host.fans.value: found -0.1, expected 0 to 1"),
    ],
)
def test_a_host_that_cannot_be_is_refused(tmp_path: Path, host: str, said: str) -> None:
    """Each with its key, what was found and what is expected."""
    with pytest.raises(JobError, match=re.escape(said)):
        parts_of(tmp_path, host)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {'busy: {value: "360 W"': 'busy: {value: "60 W"'},
            "host.idle: found 144 W, expected at most host.busy, 60 W",
        ),
        (
            {"domain_devices: {value: 8": "domain_devices: {value: 3"},
            "scale_up.domain_devices: found 3 with 8 devices of a node, expected whole nodes",
        ),
        (
            {"domain_devices: {value: 8": "domain_devices: {value: 16", "cube-mesh": "pcie"},
            "scale_up.domain_devices: found 16 with 8 devices of a node, expected at most 8: links "
            "of kind 'pcie' end with the node",
        ),
        (
            {"devices: {value: 8": "devices: {value: 4"},
            "scale_up.kind: found 'cube-mesh' with 4 devices, expected 8",
        ),
    ],
)
def test_a_node_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    """No prediction is made of a machine that cannot be."""
    path = tmp_path / "dgx.yaml"
    text = (CATALOG / "nodes" / "dgx-1.yaml").read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")

    with pytest.raises(JobError, match=re.escape(said)):
        load_node(path)
