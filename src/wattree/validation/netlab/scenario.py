"""Scenario files of emulated networks: what was run where, and what was measured.

Reads them strictly; what a task sends is the business of `traffic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattree.errors import JobError, nearest
from wattree.files import read_json

__all__ = [
    "COLLECTIVES",
    "FILE_LIMIT_BYTES",
    "Cable",
    "Communicator",
    "Measured",
    "Scenario",
    "ScenarioTask",
    "bundled_scenarios",
    "load_folder",
    "load_scenario",
]

#: Larger files are refused before they are read; the largest recorded one is below 64 KiB. [B]
FILE_LIMIT_BYTES = 8 * 2**20
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
KINDS = ("compute", "matmul", "send_recv", *COLLECTIVES)
QUEUEING = ("fair", "fifo")
_BUNDLED = Path(__file__).parents[1] / "data" / "netlab"
_SHOWN_PROBLEMS = 20
#: Longest duration, largest message and most calls of one task that make sense. [s], [B]
_LONGEST_S, _LARGEST_BYTES, _MOST_CALLS = 86_400.0, 2**40, 100_000
_LARGEST_ORDER = 100_000
_KEYS = {
    "scenario": ("id", "description", "topology", "communicators", "tasks", "measured"),
    "topology": ("hosts", "switches", "links", "queueing"),
    "link": ("ends", "rate_mbit_per_s", "rail"),
    "communicator": ("hosts", "rail"),
    "task": (
        *("id", "kind", "after", "stream", "hosts", "duration_s", "order", "count"),
        *("communicator", "size_bytes", "source", "destination", "source_host", "algorithm"),
    ),
}


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
        name, kind: Its id in the file; one of `KINDS`.
        hosts: Where it runs.
        stream: Tasks of one host and stream run one at a time, in file order.
        after: Tasks that must have ended on the same host.
        count: Calls, or matrix products, back to back.
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
        name: Its id.
        hosts, switches, cables: The network.
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
        """Whether any task is a matrix product, whose length depends on the machine."""
        return any(task.kind == "matmul" for task in self.tasks)


def bundled_scenarios() -> tuple[Scenario, ...]:
    """Return the recorded scenarios that ship with the package."""
    return load_folder(_BUNDLED)


def load_folder(folder: str | Path) -> tuple[Scenario, ...]:
    """Return the scenarios in `folder/scenarios/*.json`, or in `folder/*.json`, by file name.

    Raises:
        JobError: There is no such folder, it holds no scenario, or one cannot be used.
    """
    inner = Path(folder) / "scenarios"
    chosen = inner if inner.is_dir() else Path(folder)
    paths = sorted(chosen.glob("*.json"))
    if not paths:
        raise JobError(str(folder), ["holds no scenarios/*.json; expected files of scenarios"])
    scenarios = tuple(load_scenario(path) for path in paths)
    names = [scenario.name for scenario in scenarios]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise JobError(str(folder), [f"scenario id '{name}' stands in two files" for name in twice])
    return scenarios


def load_scenario(path: str | Path) -> Scenario:
    """Return the scenario in one file.

    Raises:
        JobError: The file cannot be read; lists every fault found in it.
    """
    reader = _Reader(read_json(path, limit_bytes=FILE_LIMIT_BYTES))
    scenario = reader.scenario()
    if reader.problems or scenario is None:
        more = len(reader.problems) - _SHOWN_PROBLEMS
        rest = [f"… and {more} more"] if more > 0 else []
        raise JobError(str(path), [*reader.problems[:_SHOWN_PROBLEMS], *rest])
    return scenario


class _Reader:
    """Turns one parsed file into a scenario and notes everything wrong on the way."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw, self.problems = raw, list[str]()
        self.hosts: tuple[str, ...] = ()
        self.communicators: dict[str, Communicator] = {}
        self.rails: tuple[int, ...] = (0,)
        self.tasks: dict[str, ScenarioTask] = {}

    def scenario(self) -> Scenario | None:
        self._refuse_slips("scenario", self.raw, "")
        topology = self._mapping(self.raw, "topology", "")
        self._refuse_slips("topology", topology, "topology")
        self.hosts = self._names(topology, "hosts", "topology", least=1)
        switches = self._names(topology, "switches", "topology", least=0)
        cables = tuple(self._cables(topology, {*self.hosts, *switches}))
        self.rails = tuple(sorted({cable.rail for cable in cables})) or (0,)
        queueing = topology.get("queueing", "fair")
        if queueing not in QUEUEING:
            self._wrong("topology.queueing", queueing, "fair or fifo")
        self._read_communicators()
        for number, task in enumerate(self._list(self.raw, "tasks", "")):
            self._read_task(task, f"tasks[{number}]")
        if not self.tasks and not self.problems:
            self.problems.append("tasks: found none, expected at least one")
        measured = self._measured() if self.raw.get("measured") is not None else None
        if self.problems:
            return None
        return Scenario(
            name=self._text(self.raw, "id", ""),
            hosts=self.hosts,
            switches=switches,
            cables=cables,
            queueing=queueing,
            communicators=self.communicators,
            tasks=tuple(self.tasks.values()),
            measured=measured,
        )

    # ---------------------------------------------------------------- values
    def _wrong(self, where: str, found: object, expected: str) -> None:
        self.problems.append(f"{where}: found {str(found)[:80]!r}, expected {expected}")

    def _refuse_slips(self, what: str, raw: Mapping[Any, Any], where: str) -> None:
        """Note keys that look like a slip. Others are left alone, as by the tool that measures."""
        for key in raw:
            guess = None if key in _KEYS[what] else nearest(str(key), _KEYS[what])
            if guess is not None and guess not in raw:
                place = f"{where}: " if where else ""
                self.problems.append(f"{place}unknown key '{key}'; did you mean '{guess}'?")

    def _mapping(self, raw: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
        found = raw.get(key, {})
        if not isinstance(found, dict) or (key == "topology" and not found):
            self._wrong(f"{where}.{key}".lstrip("."), found, "a mapping")
            return {}
        return found

    def _list(self, raw: Mapping[str, Any], key: str, where: str) -> list[Any]:
        found = raw.get(key, [])
        if not isinstance(found, list):
            self._wrong(f"{where}.{key}".lstrip("."), found, "a list")
            return []
        return found

    def _text(self, raw: Mapping[str, Any], key: str, where: str) -> str:
        found = raw.get(key)
        if not isinstance(found, str) or not found:
            self._wrong(f"{where}.{key}".lstrip("."), found, "a name")
            return ""
        return found

    def _number(self, raw: Mapping[str, Any], key: str, where: str, most: float) -> float:
        found = raw.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= most:
            self._wrong(f"{where}.{key}", found, f"a number from 0 to {most:g}")
            return 0.0
        return float(found)

    def _count(self, raw: Mapping[str, Any], key: str, where: str, most: int) -> int:
        found = raw.get(key)
        if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= most:
            self._wrong(f"{where}.{key}", found, f"a whole number from 1 to {most}")
            return 1
        return found

    def _rail(self, raw: Mapping[str, Any], default: int, where: str) -> int:
        found = raw.get("rail", default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            self._wrong(f"{where}.rail", found, "a whole number, 0 or more")
            return default
        return found

    def _names(
        self, raw: Mapping[str, Any], key: str, where: str, *, least: int
    ) -> tuple[str, ...]:
        found = self._list(raw, key, where)
        if not all(isinstance(name, str) and name for name in found) or len(found) < least:
            self._wrong(f"{where}.{key}", found, f"at least {least} name(s)")
            return ()
        if len(set(found)) < len(found):
            self._wrong(f"{where}.{key}", found, "different names")
        return tuple(found)

    # ---------------------------------------------------------------- parts
    def _cables(self, topology: dict[str, Any], nodes: set[str]) -> Iterator[Cable]:
        for number, raw in enumerate(self._list(topology, "links", "topology")):
            where = f"topology.links[{number}]"
            if not isinstance(raw, dict):
                self._wrong(where, raw, "a mapping")
                continue
            self._refuse_slips("link", raw, where)
            ends = self._names(raw, "ends", where, least=2)
            if unknown := [end for end in ends if end not in nodes]:
                self._wrong(f"{where}.ends", unknown, "names of hosts or switches")
            rate = self._number(raw, "rate_mbit_per_s", where, 1e9)
            if rate <= 0:
                self._wrong(f"{where}.rate_mbit_per_s", rate, "a rate above 0 Mbit/s")
            if len(ends) != 2:
                self._wrong(f"{where}.ends", ends, "two different names")
            elif rate > 0:
                rail = self._rail(raw, 0, where)
                yield Cable(ends=(ends[0], ends[1]), rate_bit_per_s=rate * 1e6, rail=rail)

    def _read_communicators(self) -> None:
        for name, raw in self._mapping(self.raw, "communicators", "").items():
            where = f"communicators.{name}"
            if not isinstance(raw, dict):
                self._wrong(where, raw, "a mapping")
                continue
            self._refuse_slips("communicator", raw, where)
            hosts = self._names(raw, "hosts", where, least=2)
            if hosts != tuple(host for host in self.hosts if host in hosts):
                self._wrong(
                    f"{where}.hosts", list(hosts), "hosts of the topology, in its order, as ranks"
                )
            rail = self._rail(raw, self.rails[0], where)
            if rail not in self.rails:
                self._wrong(f"{where}.rail", rail, f"one of {list(self.rails)}")
            self.communicators[str(name)] = Communicator(hosts=hosts, rail=rail)

    def _read_task(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            self._wrong(where, raw, "a mapping")
            return
        self._refuse_slips("task", raw, where)
        name, kind = self._text(raw, "id", where), raw.get("kind")
        where = f"task {name}" if name else where
        if name in self.tasks or name == "makespan":
            self._wrong(f"{where}.id", name, "a name that is not taken")
        if kind not in KINDS:
            guess = nearest(str(kind), KINDS)
            hint = f"; did you mean '{guess}'?" if guess else ""
            self._wrong(f"{where}.kind", kind, f"one of {', '.join(KINDS)}{hint}")
            return
        before = len(self.problems)
        read = self._work if kind in {"compute", "matmul"} else self._communication
        part = read(raw, str(kind), where)
        if len(self.problems) > before:
            return
        count = self._count(raw, "count", where, _MOST_CALLS) if "count" in raw else 1
        default = "compute" if part.get("communicator") is None else part["communicator"]
        stream = self._text(raw, "stream", where) if "stream" in raw else default
        after = self._after(raw, part["hosts"], where)
        self.tasks[name] = ScenarioTask(
            name=name, kind=str(kind), stream=stream, after=after, count=count, **part
        )

    def _after(self, raw: dict[str, Any], hosts: tuple[str, ...], where: str) -> tuple[str, ...]:
        earlier = tuple(self._list(raw, "after", where))
        for name in earlier:
            known = self.tasks.get(name) if isinstance(name, str) else None
            if known is None or not {*known.hosts} & {*hosts}:
                self._wrong(f"{where}.after", name, "an earlier task that shares a host with it")
        return earlier

    def _work(self, raw: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
        hosts = self._names(raw, "hosts", where, least=1)
        if unknown := [host for host in hosts if host not in self.hosts]:
            self._wrong(f"{where}.hosts", unknown, "hosts of the topology")
        if kind == "matmul":
            return {"hosts": hosts, "order": self._count(raw, "order", where, _LARGEST_ORDER)}
        found = raw.get("duration_s")
        per_host = found if isinstance(found, dict) else dict.fromkeys(hosts, found)
        inner = f"{where}.duration_s"
        durations = tuple(self._number(per_host, host, inner, _LONGEST_S) for host in hosts)
        return {"hosts": hosts, "duration_s": durations}

    def _communication(self, raw: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
        name = raw.get("communicator")
        if name not in self.communicators:
            known = ", ".join(self.communicators) or "none"
            self._wrong(f"{where}.communicator", name, f"one of: {known}")
            return {}
        group = self.communicators[name]
        size_bytes = self._count(raw, "size_bytes", where, _LARGEST_BYTES)
        part = {"communicator": name, "size_bytes": size_bytes, "hosts": group.hosts}
        if kind == "send_recv":
            ends = tuple(self._member(raw, key, group, where) for key in ("source", "destination"))
            if ends[0] == ends[1]:
                self._wrong(f"{where}.destination", ends[1], "another host than the source")
            part["hosts"] = ends
        elif kind == "broadcast":
            host = self._member(raw, "source_host", group, where)
            part["root"] = group.hosts.index(host) if host in group.hosts else 0
        elif kind != "all_reduce" and size_bytes % (4 * len(group.hosts)):
            expected = f"a multiple of 4 B x {len(group.hosts)} ranks"
            self._wrong(f"{where}.size_bytes", size_bytes, expected)
        return part

    def _member(self, raw: dict[str, Any], key: str, group: Communicator, where: str) -> str:
        host = raw.get(key)
        if host not in group.hosts:
            self._wrong(f"{where}.{key}", host, f"one of: {', '.join(group.hosts)}")
        return str(host)

    def _measured(self) -> Measured | None:
        raw = self._mapping(self.raw, "measured", "")
        makespan_s = self._number(raw, "makespan_s", "measured", _LONGEST_S)
        if makespan_s <= 0:
            self._wrong("measured.makespan_s", makespan_s, "a time above 0 s")
        end_s: dict[tuple[str, str], float] = {}
        for number, row in enumerate(self._list(raw, "tasks", "measured")):
            where = f"measured.tasks[{number}]"
            if not isinstance(row, dict):
                self._wrong(where, row, "a mapping")
                continue
            key = (str(row.get("task")), str(row.get("host")))
            if key[0] not in self.tasks or key[1] not in self.tasks[key[0]].hosts:
                self._wrong(where, key, "a task and one of its hosts")
            end_s[key] = self._number(row, "end_s", where, _LONGEST_S)
        return Measured(makespan_s=makespan_s, end_s=end_s)
