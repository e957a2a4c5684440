"""Time of traced steps by class: every instant belongs to one class, so classes add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.accounts.breakdown import covered_s
from wattree.arrays import Flags, Floats
from wattree.errors import RunError
from wattree.job import Job
from wattree.kineto.op_classes import (
    ATTENTION,
    COMMUNICATION,
    COPIES,
    DATA,
    ELEMENTWISE,
    HOST,
    OPTIMIZER,
    PRODUCTS,
    WAITING,
    op_classes,
)
from wattree.kineto.ranks import TracedRanks
from wattree.kineto.traced_rank import Spans, TracedRank
from wattree.units import format_time

#: Operators that are listed of a class.
_LISTED = 4


Rows = list[tuple[float, float]]

#: Classes of a step in the order in which an instant is given to the first that fits: work of the
#: device or the training thread, then what is in flight, then what the host does meanwhile.
WORK = (PRODUCTS, ATTENTION, ELEMENTWISE, OPTIMIZER, COPIES)
CLASSES = (*WORK, COMMUNICATION, WAITING, DATA, HOST)
#: Classes that the profiler makes longer, in the order in which its time is taken from them.
_SLOWED = (HOST, WAITING, DATA)
#: Between which shares of a traced step's work, and of it all, a step without the profiler lies:
#: clocks and caches differ between steps, and profiled steps are few.
_SHORTEST, _LONGEST = 0.8, 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """The average step of one rank.

    Attributes:
        rank: Its number; its place among the files where the trace does not say.
        step_s: Measured. [s]
        classes_s: Class → its time; they add up to the step. [s]
        hidden_s: Overlapped communication. [s]
        collectives: In a step.
        sizes_bytes: Mean of those that say their size; None where none does. [B]
        kernels: Class → its kernels; empty without a device.
    """

    rank: int
    step_s: float
    classes_s: Mapping[str, float]
    hidden_s: float
    collectives: float
    sizes_bytes: float | None
    kernels: Mapping[str, ClassKernels] = field(default_factory=dict)

    @property
    def own_s(self) -> float:
        """Time of the step that the rank itself needs, without time shared with others. [s]"""
        return self.step_s - self.classes_s[WAITING] - self.classes_s[COMMUNICATION]


def measured_ranks(traced: TracedRanks) -> tuple[MeasuredRank, ...]:
    """Return the average step of each rank."""
    waits = traced.waits()
    return tuple(_measured(index, trace, waits[index]) for index, trace in enumerate(traced.ranks))


def refuse_other_devices(job: Job, traced: TracedRanks) -> None:
    """Reject traces without kernels of a job on accelerators, and with kernels of one on CPUs.

    Raises:
        RunError: They are; every file is listed.
    """
    expected = {pool.node.device.kind != "cpu" for pool in job.cluster.pools}
    names = ", ".join(sorted({pool.node.device.name for pool in job.cluster.pools}))
    problems = []
    for trace in traced.ranks:
        has_kernels = bool(trace.kernels.name) or any(
            each.launch >= 0 for each in trace.collectives
        )
        if has_kernels not in expected:
            what = (
                "holds kernels of a device"
                if has_kernels
                else "holds no kernel of a device: add ProfilerActivity.CUDA to torch.profiler's "
                "activities"
            )
            problems.append(f"{trace.source} {what}; the job {job.source} computes on {names}")
    if problems:
        raise RunError("--trace", problems)


def _measured(index: int, trace: TracedRank, waits: Rows) -> MeasuredRank:
    """Return a rank's average step, over all marked steps."""
    kernels = kernel_classes(trace)
    rows = _rows(trace, kernels)
    flying = _rows_of([(each.start_s, each.end_s) for each in trace.collectives])
    rows[COMMUNICATION] = np.concatenate([rows[COMMUNICATION], flying])
    spans = [*trace.steps.values()]
    sums = dict.fromkeys(CLASSES, 0.0)
    hidden_s = 0.0
    for begin, end in spans:
        inside = {name: _within(own, begin, end) for name, own in rows.items()}
        waiting = _within(_rows_of(waits), begin, end)
        found, hidden = _account(inside, waiting, end - begin)
        hidden_s += hidden
        for name, seconds in found.items():
            sums[name] += seconds
    count = len(spans)
    mine = [each for each in trace.collectives if _in_steps(each.start_s, spans)]
    sizes = [each.size_bytes for each in mine if each.size_bytes is not None]
    return MeasuredRank(
        rank=index if trace.rank is None else trace.rank,
        step_s=sum(end - begin for begin, end in spans) / count,
        classes_s={name: seconds / count for name, seconds in sums.items()},
        hidden_s=hidden_s / count,
        collectives=len(mine) / count,
        sizes_bytes=float(np.mean(sizes)) if sizes else None,
        kernels=class_kernels(trace, kernels),
    )


def without_profiler(
    classes_s: Mapping[str, float], step_s: float, *, source: str
) -> dict[str, float]:
    """Return the classes of a traced step as they are in a step that no profiler slows. [s]

    It records every operator, which takes the host time: kernels take as long with it as without,
    and what the device waits for the host less, then what ranks wait for each other.

    Args:
        classes_s: Of the traced step. [s]
        step_s: Of the same run without the profiler. [s]
        source: Of that time, for messages.

    Raises:
        RunError: The times are of different runs.
    """
    found = dict(classes_s)
    traced_s = sum(found.values())
    least_s = _SHORTEST * (traced_s - sum(found[name] for name in _SLOWED))
    most_s = _LONGEST * traced_s
    if not least_s <= step_s <= most_s:
        expected = f"{format_time(least_s)} to {format_time(most_s)}"
        raise RunError(
            source,
            [
                f"found a step of {format_time(step_s)}, expected {expected}: with the profiler it "
                f"takes {format_time(traced_s)}; is it of another run?"
            ],
        )
    longer_s = traced_s - step_s  # negative: the host has what is added
    for name in _SLOWED:
        less_s = min(longer_s, found[name])
        found[name] -= less_s
        longer_s -= less_s
    whole_s = sum(found.values())
    return {name: seconds * step_s / whole_s for name, seconds in found.items()}


def _in_steps(at_s: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(begin <= at_s < end for begin, end in spans)


def _account(
    rows: Mapping[str, Floats], waiting: Floats, step_s: float
) -> tuple[dict[str, float], float]:
    """Return class → its time in one step, and the overlapped communication. [s]"""
    # Host operators run the framework: what a device or a collective does meanwhile comes first.
    layers = [*(rows[name] for name in WORK), waiting, rows[COMMUNICATION], rows[DATA]]
    reached = covered_s(layers)
    parts = np.diff([0.0, *reached])
    found = dict(zip((*WORK, WAITING, COMMUNICATION, DATA), parts.tolist(), strict=True))
    found[HOST] = max(step_s - float(reached[-1]), 0.0)
    flying = covered_s([rows[COMMUNICATION]])[0]
    return found, max(float(flying) - found[WAITING] - found[COMMUNICATION], 0.0)


def _rows(trace: TracedRank, kernels: Mapping[str, Flags]) -> dict[str, Floats]:
    """Return class → the intervals in which a rank ran it: rows (start, end). [s]

    Args:
        kernels: Class → which kernels are of it.
    """
    found: dict[str, Rows] = {name: [] for name in CLASSES}
    for begin, end, name in _own_time(trace):
        found[name].append((begin, end))
    rows = {name: _rows_of(own) for name, own in found.items()}
    start, stop, _ = trace.kernels.columns()
    spans = np.stack([start, stop], axis=1)
    for name, own in kernels.items():
        rows[name] = np.concatenate([rows[name], spans[own]])
    return rows


@dataclass(slots=True)
class _Open:
    """An operator or mark that has begun and not ended."""

    end_s: float
    own: str | None
    inside: str | None


def _own_time(trace: TracedRank) -> Iterator[tuple[float, float, str]]:
    """Yield the training thread's intervals by class: each instant belongs to the innermost event.

    On a device only marks count (loading data); without one, operators are the work.
    """
    stack: list[_Open] = []
    at_s = -np.inf
    for begin, end, own, inside in _nested(trace):
        while stack and stack[-1].end_s <= begin:
            yield from _segment(at_s, stack[-1].end_s, stack[-1])
            at_s = max(at_s, stack.pop().end_s)
        if stack:
            yield from _segment(at_s, begin, stack[-1])
        at_s = max(at_s, begin)
        outer = stack[-1] if stack else _Open(end_s=np.inf, own=None, inside=None)
        stack.append(_Open(end_s=min(end, outer.end_s), own=own, inside=outer.inside or inside))
    while stack:
        yield from _segment(at_s, stack[-1].end_s, stack[-1])
        at_s = max(at_s, stack.pop().end_s)


def _segment(begin: float, end: float, event: _Open) -> Iterator[tuple[float, float, str]]:
    name = event.inside or event.own
    if name is not None and name != HOST and end > begin:
        yield begin, end, name


def _nested(trace: TracedRank) -> list[tuple[float, float, str | None, str | None]]:
    """Return start, end, own class and class of all nested events, outer events first."""
    rules = op_classes()
    found: list[tuple[float, float, str | None, str | None]] = []
    sections: tuple[tuple[Spans, str], ...] = ((trace.marks, "marks"),)
    if not trace.on_device:
        sections = (*sections, (trace.host_ops, "host_ops"))
    for spans, section in sections:
        classes = [rules.of(section, name) for name in trace.names]
        is_mark = section == "marks"
        for begin, end, name in zip(*(each.tolist() for each in spans.columns()), strict=True):
            own = classes[name]
            inside = own if is_mark and (own == DATA or not trace.on_device) else None
            found.append((begin, end, None if is_mark else own, inside))
    return sorted(found, key=lambda each: (each[0], -each[1]))


def _rows_of(rows: Sequence[tuple[float, float]]) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _within(rows: Floats, begin: float, end: float) -> Floats:
    """Return the parts of the rows that lie between two times."""
    cut = np.clip(rows, begin, end)
    return np.asarray(cut[cut[:, 1] > cut[:, 0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassKernels:
    """Kernels of one class in a step.

    Attributes:
        count: Of a step, on average.
        operators: Name → time of its kernels, longest first; a few. [s]
    """

    count: float
    operators: Mapping[str, float]


def kernel_classes(trace: TracedRank) -> dict[str, Flags]:
    """Return class → which kernels are of it: by name, or by the optimizer's step around them."""
    rules = op_classes()
    _, _, name = trace.kernels.columns()
    updating, found = _updating(trace), {}
    of_name = np.full(len(trace.names), "", dtype=object)
    for each in np.unique(name):
        of_name[each] = rules.of("kernels", trace.names[each]) or ELEMENTWISE
    for own in sorted({*of_name, OPTIMIZER} - {""}):
        found[own] = (of_name == own)[name] & ~updating
    found[OPTIMIZER] |= updating
    return found


def _updating(trace: TracedRank) -> Flags:
    """Return for each kernel whether it was launched inside a mark of the optimizer's step."""
    rules = op_classes()
    begin, end, name = trace.marks.columns()
    chosen = np.array([rules.of("marks", each) == OPTIMIZER for each in trace.names], dtype=bool)
    begin, end = begin[chosen[name]], end[chosen[name]]
    if not len(begin):
        return np.zeros(len(trace.launch_s), dtype=bool)
    order = np.argsort(begin)
    # Unknown launches sort behind all marks and lie in none of them.
    last = np.searchsorted(begin[order], trace.launch_s, side="right") - 1
    return np.asarray((last >= 0) & (trace.launch_s < np.maximum.accumulate(end[order])[last]))


def class_kernels(trace: TracedRank, classes: Mapping[str, Flags]) -> dict[str, ClassKernels]:
    """Return class → its kernels, on average over the marked steps.

    Args:
        classes: Class → which kernels are of it.
    """
    start, end, _ = trace.kernels.columns()
    inside = np.zeros(len(start), dtype=bool)
    for begin_s, end_s in trace.steps.values():
        inside |= (start >= begin_s) & (start < end_s)
    found, steps = {}, len(trace.steps)
    for name, own in classes.items():
        known = own & inside & np.isfinite(trace.operator)
        operator, place = np.unique(trace.operator[known].astype(np.int64), return_inverse=True)
        seconds = np.bincount(place, (end - start)[known], minlength=len(operator)) / steps
        longest = np.argsort(-seconds, kind="stable")[:_LISTED]
        found[name] = ClassKernels(
            count=float((own & inside).sum()) / steps,
            operators={trace.names[operator[each]]: float(seconds[each]) for each in longest},
        )
    return {name: own for name, own in found.items() if own.count > 0}
