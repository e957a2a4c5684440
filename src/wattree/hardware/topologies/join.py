"""Joining and renaming of networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from wattree.errors import HardwareError
from wattree.hardware.network import Link, Network


def device_name(device: int) -> str:
    """Return the name of the vertex that is a device."""
    return f"d{device}"


def join(networks: Iterable[Network]) -> Network:
    """Return one network with the links of all, in order; vertices of the same name are merged."""
    parts = tuple(networks)
    links = tuple(link for part in parts for link in part.links)
    if all(part.forwards is None for part in parts):
        return Network(links=links)
    forwards = (part.vertices if part.forwards is None else part.forwards for part in parts)
    return Network(links=links, forwards=frozenset(name for part in forwards for name in part))


def renamed(network: Network, name_of: Callable[[str], str]) -> Network:
    """Return a copy with vertices renamed by `name_of`."""
    names = {name: name_of(name) for name in network.vertices}
    forwards = network.forwards
    return Network(
        links=tuple(
            replace(link, source=names[link.source], target=names[link.target])
            for link in network.links
        ),
        forwards=None if forwards is None else frozenset(names[name] for name in forwards),
    )


def without_forwarding(links: Iterable[Link], devices: Iterable[str]) -> Network:
    """Return a network in which all vertices except `devices` forward traffic."""
    every = tuple(links)
    ends = {link.source for link in every} | {link.target for link in every}
    return Network(links=every, forwards=frozenset(ends.difference(devices)))


def check_connected(network: Network, wanted: Iterable[str], *, where: str) -> None:
    """Raise an error for a network in which one of `wanted` is not connected to all others.

    Raises:
        HardwareError: Names the first vertex that is cut off.
    """
    names = list(wanted)
    for name in names[1:]:
        for source, target in ((names[0], name), (name, names[0])):
            try:
                network.path(source, target)
            except HardwareError as error:
                raise HardwareError(f"{where}: {error}") from None
