"""Scenarios of emulated networks: what was run where, and what was measured.

What a task sends is the business of `traffic`. Files are those that the tool that measures has
written and checked, so that little is asked of them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT
from wattree.errors import JobError
from wattree.files import read_json

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
#: Larger files are refused before they are read; the largest recorded one is below 64 KiB. [B]
_LIMIT_BYTES = 8 * 2**20
_BUNDLED = ROOT / "validation" / "netlab"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A full-duplex connection of two nodes.

    Attributes:
        ends: Names of the nodes.
        rate_bit_per_s: Of each direction, headers included. [bit/s]
        rail: Cables of different rails are separate networks.
    """

    ends: tuple[str, str]
    rate_bit_per_s: float
    rail: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """Hosts that talk to each other, as ranks in this order, over one rail."""

    hosts: tuple[str, ...]
    rail: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTask:
    """One task of a scenario on all of its hosts.

    Attributes:
        name, kind: Its id in the file; `compute`, `matmul`, `send_recv` or a collective.
        stream: Tasks of one host and stream run one at a time, in file order.
        after: Tasks that must have ended on the same host.
        count: Calls, or matmuls, back to back.
        duration_s: (compute) For each of `hosts`. [s]
        order: (matmul) Rows and columns of the matrices.
        communicator: (communication) Its name.
        size_bytes: (communication) As the file format defines it for each kind. [B]
        root: (broadcast, send_recv) Position of the sender in `hosts`.
    """

    name: str
    kind: str
    hosts: tuple[str, ...]
    stream: str
    after: tuple[str, ...] = ()
    count: int = 1
    duration_s: tuple[float, ...] = ()
    order: int = 0
    communicator: str | None = None
    size_bytes: int = 0
    root: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What really happened.

    Attributes:
        makespan_s: End of the last task. [s]
        end_s: (task, host) → end. [s]
    """

    makespan_s: float
    end_s: Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file.

    Attributes:
        queueing: `fair`: a link serves the pairs of hosts that use it in turn; `fifo`: one queue.
        communicators: By name.
        tasks: In file order.
        measured: None where the file has no measurement.
    """

    name: str
    hosts: tuple[str, ...]
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]
    queueing: str
    communicators: Mapping[str, Communicator]
    tasks: tuple[ScenarioTask, ...]
    measured: Measured | None = None

    @property
    def communicates(self) -> bool:
        """Whether any task uses the network."""
        return any(task.communicator is not None for task in self.tasks)

    @property
    def multiplies(self) -> bool:
        """Whether any task is a matmul, whose length depends on the machine."""
        return any(task.kind == "matmul" for task in self.tasks)


def bundled_scenarios() -> tuple[Scenario, ...]:
    """Return the recorded scenarios of the repository."""
    return load_folder(_BUNDLED)


def load_folder(folder: str | Path) -> tuple[Scenario, ...]:
    """Return the scenarios in `folder/scenarios/*.json`, or in `folder/*.json`, by file name.

    Raises:
        JobError: There is no such folder, it holds no scenario, or one cannot be used.
    """
    inner = Path(folder) / "scenarios"
    paths = sorted((inner if inner.is_dir() else Path(folder)).glob("*.json"))
    if not paths:
        raise JobError(str(folder), ["holds no scenarios/*.json; expected files of scenarios"])
    return tuple(map(load_scenario, paths))


def load_scenario(path: str | Path) -> Scenario:
    """Return the scenario in one file.

    Raises:
        JobError: It cannot be read, or is no scenario.
    """
    found = read_json(path, limit_bytes=_LIMIT_BYTES)
    try:
        return _scenario(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JobError(str(path), [f"is no scenario: {error!r}"]) from error


def _scenario(found: Mapping[str, Any]) -> Scenario:
    topology, measured = found["topology"], found.get("measured")
    cables = tuple(
        Cable(
            ends=tuple(link["ends"]),
            rate_bit_per_s=link["rate_mbit_per_s"] * 1e6,
            rail=link.get("rail", 0),
        )
        for link in topology.get("links", [])
    )
    first_rail = min((cable.rail for cable in cables), default=0)
    groups = {
        name: Communicator(hosts=tuple(group["hosts"]), rail=group.get("rail", first_rail))
        for name, group in found.get("communicators", {}).items()
    }
    return Scenario(
        name=found["id"],
        hosts=tuple(topology["hosts"]),
        switches=tuple(topology.get("switches", [])),
        cables=cables,
        queueing=topology.get("queueing", "fair"),
        communicators=groups,
        tasks=tuple(_task(task, groups) for task in found["tasks"]),
        measured=measured
        and Measured(
            makespan_s=measured["makespan_s"],
            end_s={(row["task"], row["host"]): row["end_s"] for row in measured["tasks"]},
        ),
    )


def _task(found: Mapping[str, Any], groups: Mapping[str, Communicator]) -> ScenarioTask:
    communicator, duration = found.get("communicator"), found.get("duration_s")
    hosts = tuple(found["hosts"] if communicator is None else groups[communicator].hosts)
    root = hosts.index(found["source_host"]) if "source_host" in found else 0
    if found["kind"] == "send_recv":
        hosts = (found["source"], found["destination"])
    return ScenarioTask(
        name=found["id"],
        kind=found["kind"],
        hosts=hosts,
        stream=found.get("stream") or communicator or "compute",
        after=tuple(found.get("after", [])),
        count=found.get("count", 1),
        duration_s=()
        if duration is None
        else tuple(duration[host] if isinstance(duration, dict) else duration for host in hosts),
        order=found.get("order", 0),
        communicator=communicator,
        size_bytes=found.get("size_bytes", 0),
        root=root,
    )
