"""Scenario files: read strictly, every fault of one listed at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from benchmarks.measure import ROOT
from benchmarks.netlab.scenario import (
    KINDS,
    QUEUEING,
    Cable,
    Communicator,
    Measured,
    Scenario,
    ScenarioTask,
)
from wattree.errors import HardwareError, JobError, nearest
from wattree.files import read_json
from wattree.hardware.network import Network, cable
from wattree.job.problems import Problems

#: Larger files are refused before they are read; the largest recorded one is below 64 KiB. [B]
FILE_LIMIT_BYTES = 8 * 2**20
_BUNDLED = ROOT / "validation" / "netlab"
_LONGEST_S = 86_400.0


class _Part(BaseModel):
    """A mapping of the file. Keys of no concern here are left alone, as by the tool that measures.

    A key that looks like a slip of one that is read is refused.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_slips(cls, raw: Any) -> Any:
        for key in raw if isinstance(raw, dict) else ():
            guess = None if key in cls.model_fields else nearest(str(key), cls.model_fields)
            if guess is not None and guess not in raw:
                raise ValueError(f"unknown key '{key}'; did you mean '{guess}'?")
        return raw


class _Link(_Part):
    ends: list[str] = Field(min_length=2, max_length=2, description="two names")
    rate_mbit_per_s: float = Field(gt=0, le=1e9, description="a number above 0 and up to 1e9")
    rail: int = Field(0, ge=0, description="a whole number, 0 or more")


class _Topology(_Part):
    hosts: list[str] = Field(min_length=1, description="a list of names")
    switches: list[str] = Field([], description="a list of names")
    links: list[_Link] = Field([], description="a list of links")
    queueing: Literal[QUEUEING] = Field("fair", description="fair or fifo")


class _Communicator(_Part):
    hosts: list[str] = Field(min_length=2, description="a list of at least 2 names")
    rail: int | None = Field(None, ge=0, description="a whole number, 0 or more")


class _Task(_Part):
    id: str = Field(min_length=1, description="a name")
    kind: Literal[KINDS] = Field(description=f"one of {', '.join(KINDS)}")
    stream: str | None = Field(None, min_length=1, description="a name")
    after: list[str] = Field([], description="a list of earlier tasks")
    count: int = Field(1, ge=1, le=100_000, description="a whole number from 1 to 100000")
    hosts: list[str] = Field([], description="a list of names")
    duration_s: dict[str, float] | float = Field(0.0, description=f"0 to {_LONGEST_S:g} s")
    order: int = Field(0, ge=1, le=100_000, description="a whole number from 1 to 100000")
    communicator: str | None = Field(None, description="a name")
    size_bytes: int = Field(0, ge=1, le=2**40, description=f"a whole number from 1 to {2**40}")
    source: str | None = Field(None, description="a host")
    destination: str | None = Field(None, description="a host")
    source_host: str | None = Field(None, description="a host")
    algorithm: Any = None


class _End(_Part):
    task: str = Field(description="a task")
    host: str = Field(description="a host")
    end_s: float = Field(ge=0, le=_LONGEST_S, description=f"a number from 0 to {_LONGEST_S:g}")


class _Measured(_Part):
    makespan_s: float = Field(
        gt=0, le=_LONGEST_S, description=f"a number above 0 and up to {_LONGEST_S:g}"
    )
    tasks: list[_End] = Field([], description="a list of ends")


class _File(_Part):
    id: str = Field(min_length=1, description="a name")
    description: str = Field("", description="a text")
    topology: _Topology = Field(description="a mapping of hosts, switches and links")
    communicators: dict[str, _Communicator] = Field({}, description="a mapping of names to hosts")
    tasks: list[_Task] = Field(min_length=1, description="a list of tasks")
    measured: _Measured | None = Field(None, description="a mapping of makespan_s and tasks")


def bundled_scenarios() -> tuple[Scenario, ...]:
    """Return the recorded scenarios of the repository."""
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
    problems = Problems(str(path))
    file = problems.read(_File, read_json(path, limit_bytes=FILE_LIMIT_BYTES), "")
    problems.check()
    assert file is not None
    cables = tuple(
        Cable(
            ends=(one.ends[0], one.ends[1]), rate_bit_per_s=one.rate_mbit_per_s * 1e6, rail=one.rail
        )
        for one in file.topology.links
    )
    _check_network(file.topology, problems)
    problems.check()
    groups = _communicators(file, cables, problems)
    tasks: dict[str, ScenarioTask] = {}
    for one in file.tasks:
        _add_task(one, tuple(file.topology.hosts), groups, tasks, problems)
    measured = None if file.measured is None else _measured(file.measured, tasks, problems)
    problems.check()
    return Scenario(
        name=file.id,
        hosts=tuple(file.topology.hosts),
        switches=tuple(file.topology.switches),
        cables=cables,
        queueing=file.topology.queueing,
        communicators=groups,
        tasks=tuple(tasks.values()),
        measured=measured,
    )


def _check_network(topology: _Topology, problems: Problems) -> None:
    nodes = {*topology.hosts, *topology.switches}
    if len(nodes) < len(topology.hosts) + len(topology.switches):
        problems.add("topology", "a name stands there twice, expected different names")
    first: dict[tuple[frozenset[str], int], int] = {}
    for number, link in enumerate(topology.links):
        where, ends = f"topology.links.{number}.ends", frozenset(link.ends)
        if not ends <= nodes:
            problems.add(
                where, f"found {sorted(ends - nodes)}, expected names of hosts or switches"
            )
        if len(ends) < 2 or first.setdefault((ends, link.rail), number) != number:
            problems.add(where, f"found {link.ends}, expected two names that no other link joins")


def _communicators(
    file: _File, cables: tuple[Cable, ...], problems: Problems
) -> dict[str, Communicator]:
    """Return communicators whose hosts reach each other on their rail."""
    rails = sorted({one.rail for one in cables}) or [0]
    links = [link for wire in cables for link in cable(*wire.ends, 1.0, rail=str(wire.rail))]
    network = Network(links=tuple(links))
    found = {}
    for name, group in file.communicators.items():
        where, rail = f"communicators.{name}", rails[0] if group.rail is None else group.rail
        if rail not in rails:
            problems.add(f"{where}.rail", f"found {rail}, expected one of {rails}")
        elif group.hosts != [host for host in file.topology.hosts if host in group.hosts]:
            expected = "hosts of the topology, in its order, as ranks"
            problems.add(f"{where}.hosts", f"found {group.hosts}, expected {expected}")
        else:
            try:
                for host in group.hosts[1:]:
                    network.path(group.hosts[0], host, rail=str(rail))
            except HardwareError as error:
                problems.add(f"{where}.hosts", str(error))
        found[name] = Communicator(hosts=tuple(group.hosts), rail=rail)
    return found


def _add_task(
    one: _Task,
    hosts: tuple[str, ...],
    groups: dict[str, Communicator],
    tasks: dict[str, ScenarioTask],
    problems: Problems,
) -> None:
    """Add a task to those before it, or note what is wrong with it."""
    where = f"task {one.id}"
    if one.id in tasks or one.id == "makespan":
        problems.add(f"{where}.id", f"found '{one.id}', expected a name that is not taken")
        return
    try:
        is_work = one.kind in {"compute", "matmul"}
        part = _work(one, hosts) if is_work else _communication(one, groups)
    except ValueError as error:
        problems.add("", f"{where}.{error}")
        return
    for name in one.after:
        if name not in tasks or not {*tasks[name].hosts} & {*part["hosts"]}:
            expected = "an earlier task that shares a host with it"
            problems.add(f"{where}.after", f"found '{name}', expected {expected}")
    stream = one.stream or part.get("communicator") or "compute"
    tasks[one.id] = ScenarioTask(
        name=one.id, kind=one.kind, stream=stream, after=tuple(one.after), count=one.count, **part
    )


def _work(one: _Task, hosts: tuple[str, ...]) -> dict[str, Any]:
    if not one.hosts or not {*one.hosts} <= {*hosts} or len({*one.hosts}) < len(one.hosts):
        raise ValueError(f"hosts: found {one.hosts}, expected different hosts of the topology")
    if one.kind == "matmul":
        if not one.order:
            raise ValueError("order: is missing, expected a whole number")
        return {"hosts": tuple(one.hosts), "order": one.order}
    given = one.duration_s
    durations = tuple(
        given.get(host, -1.0) if isinstance(given, dict) else given for host in one.hosts
    )
    if (
        not all(0 <= each <= _LONGEST_S for each in durations)
        or "duration_s" not in one.model_fields_set
    ):
        raise ValueError(
            f"duration_s: found {given}, expected a number from 0 to {_LONGEST_S:g} for every host"
        )
    return {"hosts": tuple(one.hosts), "duration_s": durations}


def _communication(one: _Task, groups: dict[str, Communicator]) -> dict[str, Any]:
    if one.communicator not in groups:
        known = ", ".join(groups) or "none"
        raise ValueError(f"communicator: found {one.communicator!r}, expected one of: {known}")
    hosts = groups[str(one.communicator)].hosts
    part: dict[str, Any] = {
        "communicator": one.communicator,
        "size_bytes": one.size_bytes,
        "hosts": hosts,
    }
    if not one.size_bytes:
        raise ValueError("size_bytes: is missing, expected a whole number")
    needed = {"send_recv": ("source", "destination"), "broadcast": ("source_host",)}
    for key in needed.get(one.kind, ()):
        if getattr(one, key) not in hosts:
            found = getattr(one, key)
            raise ValueError(f"{key}: found {found!r}, expected one of: {', '.join(hosts)}")
    if one.kind == "send_recv":
        if one.source == one.destination:
            raise ValueError(
                f"destination: found '{one.source}', expected another host than the source"
            )
        part["hosts"] = (one.source, one.destination)
    elif one.kind == "broadcast":
        part["root"] = hosts.index(str(one.source_host))
    elif one.kind != "all_reduce" and one.size_bytes % (4 * len(hosts)):
        expected = f"a multiple of 4 B x {len(hosts)} ranks"
        raise ValueError(f"size_bytes: found {one.size_bytes}, expected {expected}")
    return part


def _measured(raw: _Measured, tasks: dict[str, ScenarioTask], problems: Problems) -> Measured:
    for number, row in enumerate(raw.tasks):
        if row.task not in tasks or row.host not in tasks[row.task].hosts:
            found = f"found {row.task!r} on {row.host!r}, expected a task and one of its hosts"
            problems.add(f"measured.tasks.{number}", found)
    ends = {(row.task, row.host): row.end_s for row in raw.tasks}
    return Measured(makespan_s=raw.makespan_s, end_s=ends)
