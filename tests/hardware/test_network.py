"""Routes through a network of links: the fewest, ties by the order of the links."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from wattree.errors import HardwareError
from wattree.hardware.network import Link, Network, cable


def network(*ends: tuple[str, str], forwards: frozenset[str] | None = None) -> Network:
    """Return a network of equal cables."""
    links = tuple(link for pair in ends for link in cable(*pair, 1e9))
    return Network(links=links, forwards=forwards)


def names(of: Network, source: str, target: str) -> list[str]:
    """Return the links of a path by name."""
    return [of.links[link].name for link in of.path(source, target)]


def test_a_path_crosses_the_fewest_links() -> None:
    """Three hops along the ring, one across it."""
    ring = network(("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))

    assert names(ring, "a", "d") == ["a>d"]


def test_ties_go_to_the_link_named_first_at_the_target() -> None:
    """From b, both ways to d are two links long; d's first cable is that of c."""
    ring = network(("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))

    assert names(ring, "b", "d") == ["b>c", "c>d"]


def test_vertices_that_do_not_forward_lie_at_ends_only() -> None:
    """Traffic between two devices does not pass through a third."""
    mesh = network(("a", "b"), ("b", "c"), ("a", "s"), ("s", "t"), ("t", "c"))
    only_switches = Network(links=mesh.links, forwards=frozenset({"s", "t"}))

    assert names(mesh, "a", "c") == ["a>b", "b>c"]
    assert names(only_switches, "a", "c") == ["a>s", "s>t", "t>c"]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a", "x", "no link of the network touches 'x'"),
        ("a", "c", "no path leads from 'a' to 'c'; join them with links"),
    ],
)
def test_an_end_out_of_reach_is_named(source: str, target: str, message: str) -> None:
    """A simulation over it would never end."""
    parts = network(("a", "b"), ("c", "d"))

    with pytest.raises(HardwareError) as caught:
        parts.path(source, target)

    assert str(caught.value) == message


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan"), float("inf")])
def test_a_link_carries_something(bandwidth: float) -> None:
    """NaN passes comparisons that are written the other way round."""
    with pytest.raises(HardwareError, match="link a>b: bandwidth"):
        Link(source="a", target="b", bandwidth_bytes_per_s=bandwidth)


@st.composite
def connected_cables(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Return different cables that join all of up to seven nodes."""
    nodes = [f"n{k}" for k in range(draw(st.integers(2, 7)))]
    tree = [(nodes[draw(st.integers(0, k - 1))], nodes[k]) for k in range(1, len(nodes))]
    pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1 :] if (a, b) not in tree]
    more = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return draw(st.permutations(tree + more))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cables=connected_cables())
def test_routes_are_those_that_the_emulated_network_installs(
    shared: Path, cables: list[tuple[str, str]]
) -> None:
    """The measured traffic took them."""
    emulation = _emulation(shared)
    nodes = sorted({end for pair in cables for end in pair})
    links = tuple(emulation.Link(ends=pair, rate_mbit_per_s=1.0) for pair in cables)
    topology = emulation.Topology(hosts=tuple(nodes), links=links)
    routed = network(*cables)

    for target in nodes:
        hops = topology.next_hops(target, 0)
        for source in hops:
            assert names(routed, source, target)[0] == f"{source}>{hops[source]}"


def _emulation(shared: Path) -> Any:
    sys.path.insert(0, str(shared / "netlab"))
    try:
        import emulation
    finally:
        sys.path.pop(0)
    return emulation
