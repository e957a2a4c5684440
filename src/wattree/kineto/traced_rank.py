"""The content of one rank's trace: steps, work by class, collectives. Times in seconds."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.errors import RunError
from wattree.kineto.matmuls import Matmuls
from wattree.kineto.op_classes import COMMUNICATION, op_classes
from wattree.kineto.stream import TraceFile

_STEP = re.compile(r"ProfilerStep#(\d{1,18})$")
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_MEMORY = "[memory]"
_MARK_CATEGORY, _OP_CATEGORY = "user_annotation", "cpu_op"
#: Calls of the host to the runtime and the driver: those that launch kernels are among them.
_LAUNCH_CATEGORIES = frozenset({"cuda_runtime", "cuda_driver"})
#: Numbers that a kernel shares with its launch, and with the operator that launched it.
_LAUNCH, _OPERATOR = "correlation", "External id"
#: Where an event has none.
_UNKNOWN = -1
#: Versions of Kineto's format that are known.
_SCHEMA = 1
#: Bytes of an element by the name that collectives carry.
_WIDTHS: Mapping[str, int] = {
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("Half", "BFloat16"), 2),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long"), 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """One collective on one rank.

    Attributes:
        kind: `all_reduce`, `all_gather`, ….
        group: Of ranks; empty where the trace does not say.
        sequence: Its number in the group; None where the trace does not say.
        start_s, end_s: When it was in flight there. [s]
        size_bytes: What the rank put in; None where the trace does not say. [B]
        launch: Number of its launch; -1 if it has none.
    """

    kind: str
    group: str
    sequence: int | None
    start_s: float
    end_s: float
    size_bytes: float | None = None
    launch: int = _UNKNOWN


@dataclass(slots=True)
class Spans:
    """Events of one kind, in compact columns."""

    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("l"))

    def add(self, start_s: float, duration_s: float, name: int) -> None:
        """Append one event."""
        self.start_s.append(start_s)
        self.end_s.append(start_s + duration_s)
        self.name.append(name)

    def columns(self) -> tuple[Floats, Floats, Integers]:
        """Return start, end and name."""
        return (
            np.frombuffer(self.start_s, dtype=np.float64) if self.start_s else np.zeros(0),
            np.frombuffer(self.end_s, dtype=np.float64) if self.end_s else np.zeros(0),
            np.array(self.name, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRank:
    """The trace of one rank.

    Attributes:
        source: File.
        rank, world: As the trace says; None where it does not.
        on_device: Whether a device computed; else the training thread did.
        steps: Number of each step → when it began and ended (`step_windows`). [s]
        launch_s: When the host launched each kernel; NaN if unknown. [s]
        operator: Name of the operator that launched each kernel; NaN if unknown.
        host_ops, marks: Of the thread that trains, marks of steps and collectives left out.
        collectives: In the order of their start.
        peak_bytes: Most that tensors took of the device, where `profile_memory` was on. [B]
        matmuls: Between the first and the last mark of a step, per step: operator and type of its
            elements → FLOP; empty without `record_shapes`.
    """

    source: str
    rank: int | None
    world: int | None
    on_device: bool
    steps: Mapping[int, tuple[float, float]]
    kernels: Spans
    launch_s: Floats
    operator: Floats
    host_ops: Spans
    marks: Spans
    names: tuple[str, ...]
    collectives: tuple[TracedCollective, ...]
    peak_bytes: float | None = None
    matmuls: Mapping[tuple[str, str], float] = field(default_factory=dict)


def read_traced_rank(path: Path) -> TracedRank:
    """Return the content of one rank's trace.

    Args:
        path: Written by `torch.profiler`'s `export_chrome_trace`, packed or not.

    Raises:
        RunError: It is no such trace, is cut, or has no marks of steps.
    """
    with TraceFile(path) as file:
        _check_version(path, file.head)
        found = _Reading(file.head)
        for event in file.events():
            found.take(event)
    return found.traced_rank(path)


def _check_version(path: Path, head: Mapping[str, Any]) -> None:
    version = head.get("schemaVersion")
    if version != _SCHEMA:
        found = (
            "has no key 'schemaVersion': it is cut, or no trace of torch.profiler"
            if version is None
            else f"schemaVersion: found {version!r}"
        )
        raise RunError(
            str(path), [f"{found}; expected version {_SCHEMA}, which export_chrome_trace writes"]
        )


class _Reading:
    """Parser state: reads events one by one and stores the relevant ones."""

    def __init__(self, head: Mapping[str, Any]) -> None:
        self.info = _mapping(head.get("distributedInfo"))
        self.on_device = bool(head.get("deviceProperties"))
        self.numbers: dict[str, int] = {}
        self.steps: dict[int, tuple[float, float]] = {}
        self.thread = ""
        self.kernels = Spans()
        self.kernel_launches, self.kernel_operators = array("q"), array("q")
        self.launches, self.operators = Numbered(), Numbered()
        self.ops: dict[str, Spans] = {}
        self.marks: dict[str, Spans] = {}
        self.collectives: list[TracedCollective] = []
        self.rules = op_classes()
        self.of_kernel: dict[str, str | None] = {}
        self.peak_bytes: float | None = None
        self.matmuls = Matmuls()

    def take(self, event: Mapping[str, Any]) -> None:
        """Store an event if it describes work of the rank."""
        if event.get("name") == _MEMORY:
            self._memory(_mapping(event.get("args")))
            return
        start, duration = event.get("ts"), event.get("dur")
        if event.get("ph") != "X" or not _is_time(start) or not _is_time(duration):
            return
        span = (start * 1e-6, max(duration, 0.0) * 1e-6)
        category, name = str(event.get("cat")), str(event.get("name"))
        if category in _DEVICE_CATEGORIES:
            self.on_device = True
            self._kernel(name, span, event)
        elif category == _MARK_CATEGORY:
            self._mark(name, span, event)
        elif category in _LAUNCH_CATEGORIES:
            self.launches.add(_shared_number(event, _LAUNCH), span[0])
        elif category == _OP_CATEGORY:
            self._op(name, span, event)

    def _op(self, name: str, span: tuple[float, float], event: Mapping[str, Any]) -> None:
        number = self._number(name)
        self.matmuls.take(name, span[0], _mapping(event.get("args")))
        if self.on_device:
            self.operators.add(_shared_number(event, _OPERATOR), number)
        else:
            self.ops.setdefault(_thread(event), Spans()).add(*span, number)

    def _memory(self, given: Mapping[str, Any]) -> None:
        # PyTorch counts that of the host from the begin of the trace, and all that of devices.
        live = given.get("Total Allocated")
        if _whole(given.get("Device Type")) and _is_time(live):
            self.peak_bytes = max(self.peak_bytes or 0.0, float(live))

    def _kernel(self, name: str, span: tuple[float, float], event: Mapping[str, Any]) -> None:
        if name not in self.of_kernel:
            self.of_kernel[name] = self.rules.of("kernels", name)
        if self.of_kernel[name] == COMMUNICATION:
            self.collectives.append(_device_collective(name, span, event))
        else:
            self.kernels.add(*span, self._number(name))
            self.kernel_launches.append(_shared_number(event, _LAUNCH))
            self.kernel_operators.append(_shared_number(event, _OPERATOR))

    def _mark(self, name: str, span: tuple[float, float], event: Mapping[str, Any]) -> None:
        if match := _STEP.match(name):
            self.steps[int(match[1])] = (span[0], span[0] + span[1])
            self.thread = _thread(event)
        elif match := self.rules.collectives.match(name):
            own = TracedCollective(
                kind=match["kind"],
                group="",
                sequence=None,
                start_s=span[0],
                end_s=span[0] + span[1],
            )
            self.collectives.append(own)
        else:
            self.marks.setdefault(_thread(event), Spans()).add(*span, self._number(name))

    def _number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def _windows(self, launch_s: Floats) -> dict[int, tuple[float, float]]:
        """Return the steps by all that the device did, collectives among it."""
        start, end, _ = self.kernels.columns()
        others = [each for each in self.collectives if each.launch != _UNKNOWN]
        spans = [(each.start_s, each.end_s) for each in others]
        launched_s = self.launches.of(array("q", [each.launch for each in others]))
        return step_windows(
            self.steps,
            np.concatenate([launch_s, launched_s]),
            np.concatenate([np.stack([start, end], axis=1), np.reshape(spans, (-1, 2))]),
        )

    def traced_rank(self, path: Path) -> TracedRank:
        """Return the trace of the rank from the stored events."""
        if not self.steps:
            raise RunError(
                str(path),
                [
                    "no step is marked: expected 'ProfilerStep#…'; give torch.profiler a schedule, "
                    "call its step() after each step of training, and export in on_trace_ready, or "
                    "with repeat=1: after the last step, a schedule that repeats has begun anew"
                ],
            )
        launch_s = self.launches.of(self.kernel_launches)
        return TracedRank(
            source=str(path),
            rank=_whole(self.info.get("rank")),
            world=_whole(self.info.get("world_size")),
            on_device=self.on_device,
            steps=self._windows(launch_s),
            kernels=self.kernels,
            launch_s=launch_s,
            operator=self.operators.of(self.kernel_operators),
            host_ops=self.ops.get(self.thread, Spans()),
            marks=self.marks.get(self.thread, Spans()),
            names=tuple(self.numbers),
            collectives=tuple(sorted(self.collectives, key=lambda each: each.start_s)),
            peak_bytes=self.peak_bytes,
            matmuls=self.matmuls.of_steps([*self.steps.values()]),
        )


def _is_time(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _whole(value: object) -> int | None:
    """Return a non-negative integer; None for anything else."""
    return value if _is_time(value) and isinstance(value, int) else None


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a section of a trace as a mapping; empty if it is none."""
    return value if isinstance(value, dict) else {}


def _shared_number(event: Mapping[str, Any], key: str) -> int:
    """Return a number that an event shares with those that belong to it."""
    number = _whole(_mapping(event.get("args")).get(key))
    return _UNKNOWN if number is None else number


def _thread(event: Mapping[str, Any]) -> str:
    return str(event.get("tid"))


def _device_collective(
    name: str, span: tuple[float, float], event: Mapping[str, Any]
) -> TracedCollective:
    """Return a collective's kernel with its metadata."""
    given = _mapping(event.get("args"))
    elements, width = _whole(given.get("In msg nelems")), _WIDTHS.get(str(given.get("dtype")))
    return TracedCollective(
        kind=_kind(str(given.get("Collective name") or name)),
        group=str(given.get("Process Group Name", "")),
        sequence=_whole(given.get("Seq")),
        start_s=span[0],
        end_s=span[0] + span[1],
        size_bytes=float(elements * width) if elements is not None and width else None,
        launch=_shared_number(event, _LAUNCH),
    )


def _kind(name: str) -> str:
    """Return the usual name of a collective: `ncclDevKernel_AllReduce_…` is an `all_reduce`."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    for words in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast"):
        if words.replace("_", "") in plain:
            return words
    for words in ("send", "recv", "reduce", "gather", "scatter", "barrier"):
        if words in plain:
            return words
    return "other"


@dataclass(slots=True)
class Numbered:
    """What events of one kind say of a number that others carry, too: a launch, or an operator."""

    number: array[int] = field(default_factory=lambda: array("q"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, number: int, value: float) -> None:
        """Append one event; a negative number is none."""
        if number >= 0:
            self.number.append(number)
            self.value.append(value)

    def of(self, numbers: array[int]) -> Floats:
        """Return the value of each number; NaN where no event has it."""
        wanted = np.array(numbers, dtype=np.int64)
        found = np.full(len(wanted), np.nan)
        known = np.array(self.number, dtype=np.int64)
        if len(known):
            order = np.argsort(known, kind="stable")
            place = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
            same = known[order][place] == wanted
            found[same] = np.array(self.value)[order][place][same]
        return found


def step_windows(
    marks: Mapping[int, tuple[float, float]], launch_s: Floats, busy: Floats
) -> dict[int, tuple[float, float]]:
    """Return when each step began and ended, in the order of their numbers. [s]

    A device works on a step while its host launches the next. A moment of the host has come on the
    device when all that was launched before is done: so what was in flight when the trace began
    belongs to no step.

    Args:
        marks: Number of each step → when it began and ended on the host. [s]
        launch_s: When each piece of work was launched; NaN if unknown. [s]
        busy: When it ran: rows (start, end). [s]
    """
    known = np.isfinite(launch_s)
    if not known.any():
        return dict(sorted(marks.items()))
    before = ~known & (busy[:, 0] < busy[known, 0].min())
    order = np.argsort(launch_s[known], kind="stable")
    launched_s = launch_s[known][order]
    first_s = busy[before, 1].max(initial=-np.inf)
    done_s = np.maximum.accumulate(np.concatenate([[first_s], busy[known, 1][order]]))

    def come(at_s: float) -> float:
        return max(at_s, float(done_s[np.searchsorted(launched_s, at_s)]))

    return {number: (come(begin), come(end)) for number, (begin, end) in sorted(marks.items())}
