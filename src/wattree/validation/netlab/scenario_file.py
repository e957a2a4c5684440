"""Scenario files: read strictly, every fault of one listed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from wattree.errors import HardwareError, JobError, nearest
from wattree.files import read_json, refusal
from wattree.hardware.network import Network, cable
from wattree.validation.netlab.scenario import (
    KINDS,
    QUEUEING,
    Cable,
    Communicator,
    Measured,
    Scenario,
    ScenarioTask,
)
from wattree.validation.netlab.scenario_fields import ScenarioFields

__all__ = ["FILE_LIMIT_BYTES", "bundled_scenarios", "load_folder", "load_scenario"]

#: Larger files are refused before they are read; the largest recorded one is below 64 KiB. [B]
FILE_LIMIT_BYTES = 8 * 2**20
_BUNDLED = Path(__file__).parents[1] / "data" / "netlab"
_SHOWN_PROBLEMS = 20
#: Longest duration, largest message, fastest link and most calls of one task that make sense.
#: [s], [B], [Mbit/s]
_LONGEST_S, _LARGEST_BYTES, _FASTEST_MBIT, _MOST_CALLS = 86_400.0, 2**40, 1e9, 100_000
_LARGEST_ORDER = 100_000


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
    if scenario is None:
        raise refusal(str(path), reader.read.problems, most=_SHOWN_PROBLEMS)
    return scenario


class _Reader:
    """Turns one parsed file into a scenario and notes everything wrong on the way."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw, self.read = raw, ScenarioFields()
        self.hosts: tuple[str, ...] = ()
        self.communicators: dict[str, Communicator] = {}
        self.rails: tuple[int, ...] = (0,)
        self.tasks: dict[str, ScenarioTask] = {}

    def scenario(self) -> Scenario | None:
        """Return the scenario, or None after noting why there is none."""
        self.read.refuse_slips("scenario", self.raw, "")
        name = self.read.text(self.raw, "id", "")
        topology = self.read.mapping(self.raw, "topology", "", "hosts, switches and links")
        if not topology:
            return None  # all else names its hosts
        self.read.refuse_slips("topology", topology, "topology")
        self.hosts = self.read.names(topology, "hosts", "topology", least=1)
        switches = self.read.names(topology, "switches", "topology", least=0)
        cables = tuple(self._cables(topology, {*self.hosts, *switches}))
        self.rails = tuple(sorted({cable.rail for cable in cables})) or (0,)
        queueing = topology.get("queueing", "fair")
        if queueing not in QUEUEING:
            self.read.wrong("topology.queueing", queueing, "fair or fifo")
        if self.raw.get("communicators") is not None:
            self._read_communicators()
        if not self.read.problems:
            self._check_paths(cables)
        for number, task in enumerate(self.read.items(self.raw, "tasks", "", of="tasks")):
            self._read_task(task, f"tasks[{number}]")
        measured = self._measured() if self.raw.get("measured") is not None else None
        if self.read.problems:
            return None
        return Scenario(
            name=name,
            hosts=self.hosts,
            switches=switches,
            cables=cables,
            queueing=queueing,
            communicators=self.communicators,
            tasks=tuple(self.tasks.values()),
            measured=measured,
        )

    def _check_paths(self, cables: Sequence[Cable]) -> None:
        """Refuse communicators of hosts that cannot reach each other on their rail."""
        links = [link for wire in cables for link in cable(*wire.ends, 1.0, rail=str(wire.rail))]
        network = Network(links=tuple(links))
        for name, group in self.communicators.items():
            for host in group.hosts[1:]:
                try:
                    network.path(group.hosts[0], host, rail=str(group.rail))
                except HardwareError as error:
                    self.read.problems.append(f"communicators.{name}.hosts: {error}")
                    break

    def _cables(self, topology: dict[str, Any], nodes: set[str]) -> Iterator[Cable]:
        first: dict[tuple[frozenset[str], int], str] = {}
        for number, raw in enumerate(self.read.items(topology, "links", "topology")):
            where = f"topology.links[{number}]"
            if not isinstance(raw, dict):
                self.read.wrong(where, raw, "a mapping")
                continue
            self.read.refuse_slips("link", raw, where)
            ends = self.read.names(raw, "ends", where, least=2)
            if unknown := [end for end in ends if end not in nodes]:
                self.read.wrong(f"{where}.ends", unknown, "names of hosts or switches")
            rate = self.read.number(raw, "rate_mbit_per_s", where, _FASTEST_MBIT, above_zero=True)
            rail = self.read.rail(raw, 0, where)
            if len(ends) > 2:
                self.read.wrong(f"{where}.ends", list(ends), "two different names")
            elif (other := first.setdefault((frozenset(ends), rail), where)) != where:
                self.read.wrong(f"{where}.ends", list(ends), f"others than those of {other}")
            elif ends and rate > 0:
                yield Cable(ends=(ends[0], ends[1]), rate_bit_per_s=rate * 1e6, rail=rail)

    def _read_communicators(self) -> None:
        expected = "names to hosts"
        for name, raw in self.read.mapping(self.raw, "communicators", "", expected).items():
            where = f"communicators.{name}"
            if not isinstance(raw, dict):
                self.read.wrong(where, raw, "a mapping")
                continue
            self.read.refuse_slips("communicator", raw, where)
            hosts = self.read.names(raw, "hosts", where, least=2)
            if hosts and hosts != tuple(host for host in self.hosts if host in hosts):
                self.read.wrong(
                    f"{where}.hosts", list(hosts), "hosts of the topology, in its order, as ranks"
                )
            rail = self.read.rail(raw, self.rails[0], where)
            if rail not in self.rails:
                self.read.wrong(f"{where}.rail", rail, f"one of {list(self.rails)}")
            self.communicators[str(name)] = Communicator(hosts=hosts, rail=rail)

    def _read_task(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            self.read.wrong(where, raw, "a mapping")
            return
        self.read.refuse_slips("task", raw, where)
        name, kind = self.read.text(raw, "id", where), raw.get("kind")
        where = f"task {name}" if name else where
        if name in self.tasks or name == "makespan":
            self.read.wrong(f"{where}.id", name, "a name that is not taken")
        if kind not in KINDS:
            guess = nearest(str(kind), KINDS)
            hint = f"; did you mean '{guess}'?" if guess else ""
            self.read.wrong(f"{where}.kind", kind, f"one of {', '.join(KINDS)}{hint}")
            return
        before = len(self.read.problems)
        read = self._work if kind in {"compute", "matmul"} else self._communication
        part = read(raw, str(kind), where)
        if len(self.read.problems) > before:
            return
        count = self.read.count(raw, "count", where, _MOST_CALLS) if "count" in raw else 1
        default = "compute" if part.get("communicator") is None else part["communicator"]
        stream = self.read.text(raw, "stream", where) if "stream" in raw else default
        after = self._after(raw, part["hosts"], where)
        self.tasks[name] = ScenarioTask(
            name=name, kind=str(kind), stream=stream, after=after, count=count, **part
        )

    def _after(self, raw: dict[str, Any], hosts: tuple[str, ...], where: str) -> tuple[str, ...]:
        earlier = tuple(self.read.items(raw, "after", where))
        for name in earlier:
            known = self.tasks.get(name) if isinstance(name, str) else None
            if known is None or not {*known.hosts} & {*hosts}:
                self.read.wrong(
                    f"{where}.after", name, "an earlier task that shares a host with it"
                )
        return earlier

    def _work(self, raw: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
        hosts = self.read.names(raw, "hosts", where, least=1)
        if unknown := [host for host in hosts if host not in self.hosts]:
            self.read.wrong(f"{where}.hosts", unknown, "hosts of the topology")
        if kind == "matmul":
            return {"hosts": hosts, "order": self.read.count(raw, "order", where, _LARGEST_ORDER)}
        found = raw.get("duration_s")
        per_host = found if isinstance(found, dict) else dict.fromkeys(hosts, found)
        inner = f"{where}.duration_s"
        durations = tuple(self.read.number(per_host, host, inner, _LONGEST_S) for host in hosts)
        return {"hosts": hosts, "duration_s": durations}

    def _communication(self, raw: dict[str, Any], kind: str, where: str) -> dict[str, Any]:
        name = raw.get("communicator")
        if not isinstance(name, str) or name not in self.communicators:
            known = ", ".join(self.communicators) or "none"
            self.read.wrong(f"{where}.communicator", name, f"one of: {known}")
            return {}
        group = self.communicators[name]
        size_bytes = self.read.count(raw, "size_bytes", where, _LARGEST_BYTES)
        part = {"communicator": name, "size_bytes": size_bytes, "hosts": group.hosts}
        if kind == "send_recv":
            ends = tuple(self._member(raw, key, group, where) for key in ("source", "destination"))
            if ends[0] == ends[1]:
                self.read.wrong(f"{where}.destination", ends[1], "another host than the source")
            part["hosts"] = ends
        elif kind == "broadcast":
            host = self._member(raw, "source_host", group, where)
            part["root"] = group.hosts.index(host) if host in group.hosts else 0
        elif kind != "all_reduce" and size_bytes % (4 * len(group.hosts)):
            expected = f"a multiple of 4 B x {len(group.hosts)} ranks"
            self.read.wrong(f"{where}.size_bytes", size_bytes, expected)
        return part

    def _member(self, raw: dict[str, Any], key: str, group: Communicator, where: str) -> str:
        host = raw.get(key)
        if host not in group.hosts:
            self.read.wrong(f"{where}.{key}", host, f"one of: {', '.join(group.hosts)}")
        return str(host)

    def _measured(self) -> Measured | None:
        raw = self.read.mapping(self.raw, "measured", "", "makespan_s and tasks")
        if not raw:
            return None
        makespan_s = self.read.number(raw, "makespan_s", "measured", _LONGEST_S, above_zero=True)
        end_s: dict[tuple[str, str], float] = {}
        for number, row in enumerate(self.read.items(raw, "tasks", "measured")):
            where = f"measured.tasks[{number}]"
            if not isinstance(row, dict):
                self.read.wrong(where, row, "a mapping")
                continue
            key = (str(row.get("task")), str(row.get("host")))
            if key[0] not in self.tasks or key[1] not in self.tasks[key[0]].hosts:
                self.read.wrong(where, key, "a task and one of its hosts")
            end_s[key] = self.read.number(row, "end_s", where, _LONGEST_S)
        return Measured(makespan_s=makespan_s, end_s=end_s)
