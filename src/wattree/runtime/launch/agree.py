"""Messages between launchers of a job, and the agreement on nodes and devices.

Pure. Every launcher comes to the same from the same facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wattree.errors import RunError
from wattree.runtime.colocation.layout import DeviceShape, NodeShape
from wattree.runtime.colocation.mps import VARIABLES
from wattree.runtime.launch.meeting import NO_LAUNCHER, LauncherMeeting
from wattree.trace.plain import as_plain, from_plain

#: What launchers say, as a type.
Said = TypeVar("Said")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about one launcher.

    Attributes:
        host: Name of its node, unlike those of all others.
        processes: Per device, that it was asked for.
        device: `cuda` or `cpu`.
        reduce, batch_rule: As it was asked for.
        uuids: Of its devices; empty texts of processors.
        cores, numa: Of each device, where known.
    """

    host: str
    version: str
    processes: int
    device: str
    reduce: str
    batch_rule: str
    uuids: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    numa: tuple[int | None, ...]

    def __post_init__(self) -> None:
        if not len(self.uuids) == len(self.cores) == len(self.numa) > 0 < self.processes:
            raise ValueError("devices of a launcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Resources of a launcher that processes of others may need.

    Attributes:
        mps: Variables of its MPS daemon.
        port: Where ranks may meet on its host.
    """

    mps: dict[str, str]
    port: int

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16 or not set(self.mps) <= VARIABLES:
            raise ValueError("port or variables of a launcher")


def exchanged(meeting: LauncherMeeting, mine: Said) -> list[Said]:
    """Return what every launcher says, by number; this one says `mine`.

    Raises:
        RunError: Something is no launcher's.
    """
    return read_all(meeting.exchange(as_plain(mine)), type(mine))


def read_all(values: Sequence[Any], kind: type[Said]) -> list[Said]:
    """Return the messages of launchers, each a `kind` in plain types.

    Raises:
        RunError: Something is no launcher's.
    """
    found, problems = [], []
    for number, value in enumerate(values):
        try:
            said = from_plain(kind, value, [])
        except ValueError:
            said = None
        if said is None:
            problems.append(f"launcher {number}: {NO_LAUNCHER}")
        else:
            found.append(said)
    if problems:
        raise RunError("launchers", problems)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """The agreement of launchers.

    Attributes:
        nodes: In order of their first launchers.
        uuids: Of each node's devices; empty texts of processors.
        node_of: Launcher → its node.
        owned: Launcher → its local ranks.
        is_direct: Each launcher has one process: the outer launcher started as many as there are.
    """

    nodes: tuple[NodeShape, ...]
    uuids: tuple[tuple[str, ...], ...]
    node_of: tuple[int, ...]
    owned: tuple[tuple[int, ...], ...]
    is_direct: bool

    def leader_of(self, launcher: int) -> int:
        """Return the first launcher of a launcher's node."""
        return self.node_of.index(self.node_of[launcher])


#: What has to be the same everywhere: what a user calls it, and where it stands.
_ALIKE: dict[str, Callable[[Facts], object]] = {
    "--processes-per-device": lambda facts: facts.processes,
    "--device": lambda facts: facts.device,
    "--reduce": lambda facts: facts.reduce,
    "--batch-rule": lambda facts: facts.batch_rule,
    "version of Wattree": lambda facts: facts.version,
}


def agreement(every: Sequence[Facts]) -> Agreement:
    """Return the agreement of launchers.

    A launcher has the devices that it alone on its node sees; where those of a node see the same
    ones, they divide them in order.

    Raises:
        RunError: They disagree, or their devices cannot be divided; all of it.
    """
    problems = [
        record
        for name, what in _ALIKE.items()
        if (record := _difference(name, every, [what(facts) for facts in every]))
    ]
    hosts = list(dict.fromkeys(facts.host for facts in every))
    nodes: list[NodeShape] = []
    owned: dict[int, tuple[int, ...]] = {}
    direct = []
    for host in hosts:
        here = {number: facts for number, facts in enumerate(every) if facts.host == host}
        direct.append(_is_direct(here))
        node = _direct_node if direct[-1] else _node
        shape, parts = node(here, problems)
        nodes.append(shape)
        owned |= dict(zip(here, parts, strict=True))
    if len(set(direct)) > 1:
        problems.append(
            "some hosts have a launcher for each process, others for each device; expected the "
            "same number of launchers everywhere"
        )
    if problems:
        raise RunError("launchers", problems)
    return Agreement(
        nodes=tuple(nodes),
        uuids=tuple(
            tuple(
                dict.fromkeys(uuid for facts in every if facts.host == host for uuid in facts.uuids)
            )
            for host in hosts
        ),
        node_of=tuple(hosts.index(facts.host) for facts in every),
        owned=tuple(owned[number] for number in range(len(every))),
        is_direct=direct[0],
    )


def _difference(name: str, every: Sequence[Facts], values: Sequence[object]) -> str:
    """Return which launchers differ; empty if all agree."""
    if len(set(values)) == 1:
        return ""
    parts = []
    for value in dict.fromkeys(values):
        same = [number for number, other in enumerate(values) if other == value]
        hosts = sorted({every[number].host.partition(" ")[0] for number in same})
        parts.append(
            f"{value} by launcher {', '.join(map(str, same[:8]))}{' …' if same[8:] else ''} "
            f"({', '.join(hosts[:4])}{' …' if hosts[4:] else ''})"
        )
    return f"{name}: found {'; '.join(parts)}; expected the same everywhere"


def _is_direct(here: Mapping[int, Facts]) -> bool:
    """Return whether each launcher of a node is to have one process.

    Programs of MPI have to be started by MPI's own launcher, each of them.
    """
    first = next(iter(here.values()))
    everywhere_alike = len({facts.uuids for facts in here.values()}) == 1
    fills = everywhere_alike and len(here) == first.processes * len(first.uuids)
    return first.reduce == "mpi" or (first.device == "cuda" and first.processes > 1 and fills)


def _direct_node(
    here: Mapping[int, Facts], problems: list[str]
) -> tuple[NodeShape, list[tuple[int, ...]]]:
    """Return the devices of a node whose launchers have one process each."""
    every = list(here.values())
    first = every[0]
    name, q = first.host.partition(" ")[0], first.processes
    shapes = _shapes(first)
    if first.device == "cpu":
        shapes = shapes[:1] * max(len(every) // max(q, 1), 1)
    if len(every) != q * len(shapes):
        problems.append(
            f"{name}: found {len(every)} launcher(s) for {len(shapes)} device(s) with {q} "
            "processes each; --reduce mpi has MPI start every process: mpirun -n "
            f"{q * len(shapes)} wattree launch --processes-per-device {q} --reduce mpi -- COMMAND"
        )
    return NodeShape(devices=tuple(shapes)), [(place,) for place in range(len(every))]


def _node(
    here: Mapping[int, Facts], problems: list[str]
) -> tuple[NodeShape, list[tuple[int, ...]]]:
    """Return a node's devices, and the local ranks of each of its launchers."""
    every = list(here.values())
    first, seen = every[0], [facts.uuids for facts in every]
    counts = [len(uuids) for uuids in seen]
    flat = [uuid for uuids in seen for uuid in uuids]
    if first.device == "cpu" or len(set(flat)) == len(flat):  # each has its own
        shapes = [shape for facts in every for shape in _shapes(facts)]
        return NodeShape(devices=tuple(shapes)), _runs(
            [count * first.processes for count in counts]
        )
    name = first.host.partition(" ")[0]
    if len(set(seen)) > 1:
        problems.append(
            f"{name}: its {len(every)} launchers see devices that overlap; expected each to see "
            "its own (CUDA_VISIBLE_DEVICES), or all to see the same"
        )
    elif counts[0] % len(every):
        problems.append(
            f"{name}: found {len(every)} launchers for {counts[0]} devices; start one for each "
            "device, or one for the node"
        )
    share = counts[0] // len(every) * first.processes
    return NodeShape(devices=tuple(_shapes(first))), _runs([share] * len(every))


def _runs(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return ranges of consecutive numbers with the given lengths."""
    begins = [sum(counts[:place]) for place in range(len(counts))]
    return [tuple(range(begin, begin + count)) for begin, count in zip(begins, counts, strict=True)]


def _shapes(facts: Facts) -> list[DeviceShape]:
    return [
        DeviceShape(cores=cores, numa=numa)
        for cores, numa in zip(facts.cores, facts.numa, strict=True)
    ]
