"""Assigns processes to devices, from nodes, devices and processes per device. Pure.

Ranks of a device are consecutive, devices in order, nodes in order. Cores of a device are divided
among its processes in runs of neighbours, and devices of one node that have the same cores near
them divide those first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattree.errors import RunError

_SOURCE = "--processes-per-device"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShape:
    """The properties of a device that the layout uses.

    Attributes:
        cores: Numbers of the processor cores near it that the job may use, neighbours side by
            side; empty where that is not known, and nothing is pinned.
        numa: Memory domain of the device; None where it is not known.
    """

    cores: tuple[int, ...] = ()
    numa: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """The devices of a node, in order."""

    devices: tuple[DeviceShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Placement of a process.

    Attributes:
        rank: Number of the process in the job.
        node: Number of its node.
        local_rank: Number of the process on its node.
        device: Number of its device in the job.
        local_device: Number of its device on the node.
        device_rank: Number of the process on its device; 0 leads.
        cores: Processor cores that it keeps to; empty where it keeps to none.
        numa: Memory domain of its device; None where it is not known.
        loader_workers: Of this process; None where nothing was set.
    """

    rank: int
    node: int
    local_rank: int
    device: int
    local_device: int
    device_rank: int
    cores: tuple[int, ...] = ()
    numa: int | None = None
    loader_workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLayout:
    """All processes of a job, by rank.

    Attributes:
        places: One for each rank.
        processes_per_device: `q`.
        devices: Over all nodes, `N`; the job has `q N` ranks.
    """

    places: tuple[ProcessPlace, ...]
    processes_per_device: int
    devices: int

    @property
    def ranks(self) -> int:
        """All processes."""
        return len(self.places)

    def on_node(self, node: int) -> tuple[ProcessPlace, ...]:
        """Return the processes of a node, by local rank."""
        return tuple(place for place in self.places if place.node == node)


def layout(
    nodes: Sequence[NodeShape], processes_per_device: int, *, loader_workers: int | None = None
) -> ProcessLayout:
    """Return the placement of each process of a job.

    Args:
        nodes: In order; each with its devices.
        processes_per_device: `q`, the same on every device.
        loader_workers: Of each device, divided among its processes; None: nothing is said of them.

    Raises:
        RunError: No device, or numbers that cannot be.
    """
    problems = []
    if processes_per_device < 1:
        problems.append(f"found {processes_per_device}, expected a whole number from 1")
    if loader_workers is not None and loader_workers < 0:
        problems.append(f"--loader-workers: found {loader_workers}, expected a number from 0")
    bare = [str(number) for number, node in enumerate(nodes) if not node.devices]
    if bare or not nodes:
        problems.append(f"no device on node {', '.join(bare) or 0}; expected one or more")
    if problems:
        raise RunError(_SOURCE, problems)
    places: list[ProcessPlace] = []
    devices = 0
    for number, node in enumerate(nodes):
        places += _on_node(
            number, node, processes_per_device, loader_workers, first=len(places), device=devices
        )
        devices += len(node.devices)
    return ProcessLayout(
        places=tuple(places), processes_per_device=processes_per_device, devices=devices
    )


def share_of(total: int, parts: int, part: int) -> int:
    """Return how many of `total` equal items one of `parts` gets; the first ones get the rest."""
    return total // parts + (part < total % parts)


def _on_node(
    number: int, node: NodeShape, q: int, workers: int | None, *, first: int, device: int
) -> list[ProcessPlace]:
    found = []
    for local, shape in enumerate(node.devices):
        near = _near(node, local)
        for device_rank in range(q):
            local_rank = local * q + device_rank
            found.append(
                ProcessPlace(
                    rank=first + local_rank,
                    node=number,
                    local_rank=local_rank,
                    device=device + local,
                    local_device=local,
                    device_rank=device_rank,
                    cores=_part(near, q, device_rank),
                    numa=shape.numa,
                    loader_workers=None if workers is None else share_of(workers, q, device_rank),
                )
            )
    return found


def _near(node: NodeShape, local: int) -> tuple[int, ...]:
    """Return the cores of a device that no other device of the node has.

    Devices with the same cores near them (those of one memory domain) divide them. Where there are
    fewer cores than such devices, or sets overlap otherwise, all keep to what is near them.
    """
    cores = node.devices[local].cores
    alike = [place for place, shape in enumerate(node.devices) if shape.cores == cores]
    return _part(cores, len(alike), alike.index(local))


def _part(cores: tuple[int, ...], parts: int, part: int) -> tuple[int, ...]:
    """Return a contiguous run of cores; all of them if there are fewer than parts."""
    if len(cores) < parts:
        return cores
    begin = sum(share_of(len(cores), parts, before) for before in range(part))
    return cores[begin : begin + share_of(len(cores), parts, part)]
