"""Replay: a Chakra trace → an execution graph → start and end times."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wattree.accounts.breakdown import time_parts
from wattree.accounts.class_sums import class_sums
from wattree.cost import at_precision, load_calibration, software_family
from wattree.cost.rates import rates_of
from wattree.errors import CostError, JobError, SimulationError, UnknownNameError
from wattree.graph import ExecutionGraph, Phase, StageLabel, StreamKind, TaskKind
from wattree.graph.assembly import Assembly, Task, graph_of
from wattree.hardware import Cluster, Precision
from wattree.interchange.energy import ReplayEnergy, replay_energy
from wattree.interchange.files import GROUP_FILE, read_groups, trace_files
from wattree.interchange.matching import Matched, Unit, UnitKind, matched
from wattree.interchange.ordering import taken_order
from wattree.interchange.own import is_own, own_assembly
from wattree.interchange.reading import read_traces
from wattree.interchange.timing import ClusterTiming, Cost, RecordedTiming, Timing, check_fits
from wattree.job.entered import entering
from wattree.sim import execute
from wattree.trace import TimeParts, Trace

_TASK_KINDS = {
    UnitKind.COMPUTE: TaskKind.COMPUTE,
    UnitKind.HOST: TaskKind.HOST,
    UnitKind.COLLECTIVE: TaskKind.COLLECTIVE,
    UnitKind.TRANSFER: TaskKind.TRANSFER,
    UnitKind.COPY: TaskKind.TRANSFER,
    UnitKind.NOTHING: TaskKind.HOST,
}
_STREAM_KINDS = {
    UnitKind.COMPUTE: StreamKind.COMPUTE,
    UnitKind.HOST: StreamKind.HOST,
    UnitKind.COLLECTIVE: StreamKind.COMMUNICATION,
    UnitKind.TRANSFER: StreamKind.COMMUNICATION,
    UnitKind.COPY: StreamKind.COPY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The platform on which a trace is executed.

    Attributes:
        cluster: Rank r runs on device r.
        software: Family whose calibration applies.
        precision: Number format of matrix work, for the roofline.
        roofline: Compute times from operations and bytes even if a time was recorded.
        calibration: File of constants; the shipped one if None.
    """

    cluster: Cluster
    software: str = "megatron-core"
    precision: str = "bf16"
    roofline: bool = False
    calibration: str | Path | None = None

    def timing(self) -> ClusterTiming:
        """Return the rates of the platform.

        Raises:
            UnknownNameError: Unknown software family or precision.
            JobError: The device has no matrix unit for the precision.
        """
        if self.precision not in {str(precision) for precision in Precision}:
            raise UnknownNameError(kind="precision", name=self.precision, known=list(Precision))
        precision = Precision(self.precision)
        software = at_precision(software_family(self.software), precision)
        try:
            rates = rates_of(self.cluster, software, precision, load_calibration(self.calibration))
        except CostError as error:
            raise JobError("--precision", [str(error)]) from error
        return ClusterTiming(cluster=self.cluster, rates=rates, roofline=self.roofline)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of replaying a trace.

    Attributes:
        source: Path of the trace.
        times_from: `wattree` (attributes of our own), `recorded` or `cluster`.
        ranks, nodes: Files and nodes of the trace.
        step_time_s: End of the last task. [s]
        time_s: Parts of the step on the rank with the most computation.
        slowest_rank: That rank.
        tasks, events: Of the simulation.
        timeless_nodes: Computations with neither a time nor operations: simulated as 0 s.
        trace: Start and end of every task.
        read_s, run_s: Time to read the files and build the graph, and to execute it. [s]
        energy: Energy on the cluster; None without a cluster.
    """

    source: str
    times_from: str
    ranks: int
    nodes: int
    step_time_s: float
    time_s: TimeParts
    slowest_rank: int
    tasks: int
    events: int
    timeless_nodes: int
    trace: Trace = field(repr=False, compare=False)
    read_s: float = field(compare=False)
    run_s: float = field(compare=False)
    energy: ReplayEnergy | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, without the trace."""
        names = (name for name in self.__slots__ if name not in {"trace", "time_s", "energy"})
        return {name: getattr(self, name) for name in names} | {
            "time_s": asdict(self.time_s),
            "energy": None if self.energy is None else self.energy.as_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrace:
    """A trace as a graph.

    Attributes:
        graph: To play; every rank is a class of its own.
        nodes: Nodes of the files.
        times_from: As in `Replay`.
        timeless_nodes: As in `Replay`.
    """

    graph: ExecutionGraph
    nodes: int
    times_from: str
    timeless_nodes: int


@entering()
def replay(
    place: str | Path,
    *,
    platform: Platform | None = None,
    groups: str | Path | None = None,
    dims: Sequence[int] = (),
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
) -> Replay:
    """Read and replay a Chakra trace.

    Args:
        place: Folder of the files `PREFIX.RANK.et`, or that folder with `/PREFIX` after it.
        platform: Hardware of the replay. None: as Wattree wrote it, or with the recorded times.
        groups: File of process groups; `comm_group.json` next to the traces if None.
        dims: Ranks along each network dimension, innermost first, for `involved_dim`.
        sharing, mutual_slowdown: As for `wattree.sim.execute`.

    Raises:
        JobError: The files are not a complete Chakra trace, or contradict each other.
        SimulationError: The trace cannot be executed to its end.
        MissingExtraError: Protobuf is not installed.
    """
    began = time.perf_counter()
    read = chakra_graph(place, platform=platform, groups=groups, dims=dims)
    ready = time.perf_counter()
    try:
        trace = execute(read.graph, sharing=sharing, mutual_slowdown=mutual_slowdown)
    except SimulationError as error:
        raise SimulationError(f"{place}: {error}") from error
    ended = time.perf_counter()
    slowest = class_sums(trace).slowest
    return Replay(
        source=str(place),
        times_from=read.times_from,
        ranks=read.graph.ranks,
        nodes=read.nodes,
        step_time_s=trace.makespan_s,
        time_s=time_parts(trace, slowest),
        slowest_rank=slowest,
        tasks=read.graph.tasks,
        events=trace.events,
        timeless_nodes=read.timeless_nodes,
        trace=trace,
        read_s=ready - began,
        run_s=ended - ready,
        energy=None
        if platform is None
        else replay_energy(
            trace,
            platform.cluster,
            Precision(platform.precision),
            load_calibration(platform.calibration),
        ),
    )


def chakra_graph(
    place: str | Path,
    *,
    platform: Platform | None = None,
    groups: str | Path | None = None,
    dims: Sequence[int] = (),
) -> ReadTrace:
    """Return the execution graph of a Chakra trace. Arguments and errors as in `replay`."""
    with _collector_at_rest():
        return _chakra_graph(Path(place), platform, groups, dims)


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Keep the cyclic collector from walking millions of new objects, none of them in a cycle."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _chakra_graph(
    place: Path, platform: Platform | None, groups: str | Path | None, dims: Sequence[int]
) -> ReadTrace:
    timing = RecordedTiming() if platform is None else platform.timing()
    files = trace_files(place)
    traces = read_traces(files)
    if platform is not None:
        check_fits(platform.cluster, len(traces), str(place))
    own_groups = files.paths[0].parent / GROUP_FILE
    path = groups or (own_groups if own_groups.is_file() else None)
    named = {} if path is None else read_groups(path)
    own = platform is None and is_own(traces)
    # Our own files say which stream a task is on; their control dependencies say it once more.
    found = matched(traces, named, dims=dims, control=not own)
    timeless = 0
    if own:
        assembly, times_from = own_assembly(traces, found), "wattree"
    else:
        assembly, timeless = _assembly(found, timing)
        times_from = "recorded" if platform is None else "cluster"
    return ReadTrace(
        graph=graph_of(assembly),
        nodes=sum(len(trace.nodes) for trace in traces),
        times_from=times_from,
        timeless_nodes=timeless,
    )


def _assembly(found: Matched, timing: Timing) -> tuple[Assembly, int]:
    """Return the tasks of any trace, and how many computations have no time."""
    units = found.units
    streams = _Streams(units)
    costs = [timing.cost(unit) for unit in units]
    order = taken_order(units, streams.of_unit, [c.latency_s + c.work_s for c in costs])
    place = {index: position for position, index in enumerate(order)}
    assembly = Assembly(
        tasks=[_task(units[i], costs[i], streams.of_unit[i]) for i in order],
        before=[sorted(place[before] for before in units[i].before) for i in order],
        stream_kinds=streams.kinds,
        stream_ranks=streams.ranks,
        rank_names=[f"rank {rank}" for rank in range(found.ranks)],
        link_names=timing.link_names,
        link_bytes_per_s=timing.link_bytes_per_s,
        compute_rate=timing.compute_rate,
        communication_rate=timing.communication_rate,
        categories=("activations",),  # a trace says nothing of memory
        static_bytes=np.zeros(found.ranks),
        static_by_category=np.zeros((found.ranks, 1)),
    )
    timeless = sum(
        unit.kind is UnitKind.COMPUTE and not cost.work_s
        for unit, cost in zip(units, costs, strict=True)
    )
    return assembly, timeless


class _Streams:
    """One stream per rank for computation, one for the host, and one per communicator."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.kinds: list[int] = []
        self.ranks: list[int] = []
        self._known: dict[tuple[int, object], int] = {}
        self.of_unit = [self._streams(unit) for unit in units]

    def _streams(self, unit: Unit) -> tuple[int, ...]:
        if unit.kind is UnitKind.NOTHING:
            return ()  # it only passes on what it waits for
        line: object = unit.kind
        if unit.kind is UnitKind.COLLECTIVE:
            line = unit.ranks
        elif unit.kind is UnitKind.TRANSFER:
            line = UnitKind.TRANSFER, unit.receiver
        return tuple(sorted(self._stream(rank, line, unit.kind) for rank in unit.ranks))

    def _stream(self, rank: int, line: object, kind: UnitKind) -> int:
        if (rank, line) not in self._known:
            self._known[rank, line] = len(self.kinds)
            self.kinds.append(int(_STREAM_KINDS[kind]))
            self.ranks.append(rank)
        return self._known[rank, line]


def _task(unit: Unit, cost: Cost, streams: tuple[int, ...]) -> Task:
    node, kind = unit.nodes[0], _TASK_KINDS[unit.kind]
    moves = kind in {TaskKind.COLLECTIVE, TaskKind.TRANSFER}
    is_compute = unit.kind is UnitKind.COMPUTE
    return Task(
        name=node.name,
        kind=int(kind),
        latency_s=cost.latency_s,
        work_s=cost.work_s,
        streams=streams,
        flows=cost.flows,
        # As in compiled jobs: kernels of collectives take units from compute, copies do not.
        overlaps=unit.kind is UnitKind.COLLECTIVE,
        phase=int(Phase.FORWARD),
        stage=int(StageLabel.COMMUNICATING if moves else StageLabel.COMPUTING),
        flop=float(node.integer("num_ops", 0)) if is_compute else 0.0,
        memory_traffic_bytes=float(node.integer("tensor_size", 0)) if is_compute else 0.0,
        link_traffic_bytes=cost.sent_bytes,
    )
