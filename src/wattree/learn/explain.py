"""Explains why a run is slower than predicted: measured and predicted classes, and faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattree.errors import RunError
from wattree.files import read_yaml
from wattree.job import Job
from wattree.kinds import check_kind
from wattree.kineto.op_classes import ATTENTION, COMMUNICATION, HOST, PRODUCTS, WAITING, op_classes
from wattree.kineto.ranks import TracedRanks
from wattree.learn.measured_steps import (
    CLASSES,
    MeasuredRank,
    measured_ranks,
    refuse_other_devices,
    without_profiler,
)
from wattree.learn.predicted_step import PredictedStep
from wattree.learn.traced_work import contradictions, traced_work
from wattree.units import format_bytes, format_time

_CAUSES = Path(__file__).with_name("causes.yaml")
SLOW_RANK, SMALL_BUCKETS = "slow_rank", "small_buckets"
STEP_TIME = "--step-time"
#: No device and no library is so much slower or faster than predicted at the same matmuls.
_OTHER_WORK = 10.0
#: Share of the step from which time of the host may be the profiler's.
_PROFILED = 0.05
#: Share of the step below which a difference is not worth a line.
_LEAST = 0.01
#: Share of the step from which an operator is listed.
_LISTED = 0.005
#: Share of the step that a rank must take more than the others, and of the waiting in collectives
#: that must be for it, to be called slow.
_SLOWER, _LATE = 0.05, 0.5
#: Collectives over predicted ones from which buckets are called small.
_MANY = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTime:
    """One class of a step, predicted and measured (mean over the ranks). [s]"""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def difference_s(self) -> float:
        """Measured minus predicted. [s]"""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFault:
    """A cause that makes the step longer than predicted.

    Attributes:
        fault: A class, `slow_rank` or `small_buckets`.
        title: In words.
        lost_s: Of each step. [s]
        evidence: Observations that support it.
        causes: What it usually is, likeliest first.
    """

    fault: str
    title: str
    lost_s: float
    evidence: str
    causes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Comparison of a run with its prediction.

    Attributes:
        predicted_s, measured_s: The step; measured on average over the ranks. [s]
        traced_s: The step in the trace, which the profiler makes longer. [s]
        interval_s: Between which the prediction has it with 80 % probability. [s]
        classes: Largest difference first.
        hidden_s: Overlapped communication, predicted and measured. [s]
        collectives: In a step, predicted and measured.
        faults: Most time first.
        ranks: Each rank's own step.
        notes: What the traces do not show.
        tensor_bytes: Most that tensors take of a device, predicted and measured; None where no
            trace has it. [B]
    """

    predicted_s: float
    measured_s: float
    traced_s: float
    interval_s: tuple[float, float]
    classes: tuple[ClassTime, ...]
    hidden_s: tuple[float, float]
    collectives: tuple[float, float]
    faults: tuple[StepFault, ...]
    ranks: tuple[MeasuredRank, ...]
    notes: tuple[str, ...]
    tensor_bytes: tuple[float, float | None]

    @property
    def is_expected(self) -> bool:
        """Whether the run is as fast as predicted, within the accuracy of predictions."""
        low_s, high_s = self.interval_s
        return low_s <= self.measured_s <= high_s

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain types."""
        found = asdict(self)
        for plain, own in zip(found["classes"], self.classes, strict=True):
            plain["difference_s"] = own.difference_s
        return found


def explain(
    job: Job, traced: TracedRanks, predicted: PredictedStep, step_s: float | None = None
) -> Explanation:
    """Return why a traced run takes its time.

    Args:
        step_s: Its step without the profiler; None where only the trace says it. [s]

    Raises:
        RunError: The traces are of another run than the job.
    """
    refuse_other_devices(job, traced)
    ranks = measured_ranks(traced)
    refuse_other_job(job, traced, ranks, predicted)
    traced_s = float(np.mean([each.step_s for each in ranks]))
    if step_s is not None:
        ranks = tuple(_untraced(each, step_s) for each in ranks)
    classes = [
        ClassTime(
            name=name,
            predicted_s=predicted.classes_s[name],
            measured_s=float(np.mean([each.classes_s[name] for each in ranks])),
        )
        for name in CLASSES
    ]
    return Explanation(
        predicted_s=predicted.step_s,
        measured_s=float(np.mean([each.step_s for each in ranks])),
        traced_s=traced_s,
        interval_s=predicted.interval_s,
        classes=tuple(sorted(classes, key=lambda each: -abs(each.difference_s))),
        hidden_s=(predicted.hidden_s, float(np.mean([each.hidden_s for each in ranks]))),
        collectives=(predicted.collectives, float(np.mean([each.collectives for each in ranks]))),
        faults=tuple(_faults(predicted, ranks, traced)),
        ranks=ranks,
        notes=(
            *traced.notes,
            *_of_profiler(traced, ranks, traced_s, step_s),
            *of_other_work(classes, job.source),
        ),
        tensor_bytes=(
            predicted.tensor_bytes,
            max((each.peak_bytes for each in traced.ranks if each.peak_bytes), default=None),
        ),
    )


def _untraced(rank: MeasuredRank, step_s: float) -> MeasuredRank:
    classes_s = without_profiler(rank.classes_s, step_s, source=STEP_TIME)
    return replace(rank, step_s=step_s, classes_s=classes_s)


def _of_profiler(
    traced: TracedRanks, ranks: Sequence[MeasuredRank], traced_s: float, step_s: float | None
) -> Iterator[str]:
    """Yield what the profiler itself did to the step."""
    host_s = float(np.mean([each.classes_s[HOST] for each in ranks]))
    if step_s is not None:
        yield (
            f"the step took {format_time(traced_s)} while it was traced; what the profiler added "
            "is left out, first of host"
        )
    elif traced.ranks[0].on_device and host_s > _PROFILED * traced_s:
        yield (
            f"the profiler slows the host, so part of the {format_time(host_s)} of host may be its "
            f"own; {STEP_TIME} '… ms', the step without it, leaves that out"
        )


def of_other_work(classes: Sequence[ClassTime], source: str) -> Iterator[str]:
    """Yield that traces seem to be of another job: matmuls take another order of magnitude.

    Args:
        source: File of the job.
    """
    for each in classes:
        low_s, high_s = sorted((each.measured_s, each.predicted_s))
        if each.name == PRODUCTS and high_s > _OTHER_WORK * low_s:
            yield (
                f"matmuls take {format_time(each.measured_s)} a step, "
                f"{format_time(each.predicted_s)} predicted: the traces seem to be of another "
                f"model, batch or cluster than {source} says"
            )


def refuse_other_job(
    job: Job, traced: TracedRanks, ranks: tuple[MeasuredRank, ...], predicted: PredictedStep
) -> None:
    """Reject traces that show other ranks, matmuls or collectives than the job has.

    Raises:
        RunError: They do; every difference is listed.
    """
    work = traced_work(traced, ranks)
    linear_s, attention_s = predicted.classes_s[PRODUCTS], predicted.classes_s[ATTENTION]
    of_job = (predicted.setting, predicted.ranks, linear_s, attention_s)
    if problems := list(contradictions(work, *of_job)):
        raise RunError(f"--trace ({job.source})", problems)


def _faults(
    predicted: PredictedStep, ranks: Sequence[MeasuredRank], traced: TracedRanks
) -> list[StepFault]:
    """Return the causes of longer time, longest first."""
    step_s = float(np.mean([each.step_s for each in ranks]))
    texts = read_yaml(_CAUSES)
    slow = _slow_rank(ranks, traced)
    others = [each for index, each in enumerate(ranks) if slow is None or index != slow]
    over = {
        name: float(np.mean([each.classes_s[name] for each in others])) - predicted.classes_s[name]
        for name in CLASSES
    }
    found: list[tuple[str, float, str]] = []
    if slow is not None:
        excess_s = _excess_s(ranks, slow)
        found.append((SLOW_RANK, excess_s, _of_slow(ranks, slow, traced)))
        over[WAITING] -= excess_s
    if _has_stages(traced):
        over[WAITING] -= _others_excess_s(predicted, others)
    count = float(np.mean([each.collectives for each in ranks]))
    if count > _MANY * max(predicted.collectives, 1):
        lost_s = over.pop(COMMUNICATION) + max(over.pop(WAITING), 0.0)
        found.append((SMALL_BUCKETS, lost_s, _of_buckets(predicted, ranks, count)))
    found += [
        (
            name,
            lost_s,
            f"{format_time(lost_s + predicted.classes_s[name])} a step, "
            f"{format_time(predicted.classes_s[name])} predicted{_of_kernels(others[0], name)}",
        )
        for name, lost_s in over.items()
    ]
    return [
        StepFault(
            fault=name,
            title=texts[name]["title"],
            lost_s=lost_s,
            evidence=evidence,
            causes=tuple(texts[name]["causes"]),
        )
        for name, lost_s, evidence in sorted(found, key=lambda each: -each[1])
        if lost_s > _LEAST * step_s
    ]


def _of_kernels(rank: MeasuredRank, name: str) -> str:
    """Return the kernels of a class on a rank, and the operators that launched most of them."""
    kernels = rank.kernels.get(name)
    if kernels is None:
        return ""
    most = ", ".join(
        f"{operator.removeprefix('aten::')} {format_time(seconds)}"
        for operator, seconds in kernels.operators.items()
        if seconds > _LISTED * rank.step_s
    )
    return f"; {kernels.count:,.0f} kernels{f', most by {most}' if most else ''}"


def _has_stages(traced: TracedRanks) -> bool:
    """Return whether ranks send to each other, as pipeline stages do."""
    pairwise = op_classes().pairwise
    return any(pairwise.search(each.kind) for each in traced.ranks[0].collectives)


def _others_excess_s(predicted: PredictedStep, ranks: Sequence[MeasuredRank]) -> float:
    """Return how long a stage waits because all others are slower than predicted."""
    shared = {WAITING, COMMUNICATION}
    work_s = sum(time for name, time in predicted.classes_s.items() if name not in shared)
    excess_s = sum(max(each.own_s - work_s, 0.0) for each in ranks)
    return excess_s * (len(ranks) - 1) / len(ranks)


def _excess_s(ranks: Sequence[MeasuredRank], slow: int) -> float:
    others = [each.own_s for index, each in enumerate(ranks) if index != slow]
    return ranks[slow].own_s - float(np.median(others))


def _slow_rank(ranks: Sequence[MeasuredRank], traced: TracedRanks) -> int | None:
    """Return the index of a rank that is slower by itself and delays others."""
    if len(ranks) < 2:
        return None
    slow = max(range(len(ranks)), key=lambda index: ranks[index].own_s)
    if _excess_s(ranks, slow) < _SLOWER * ranks[slow].step_s:
        return None
    # Stages wait where they receive, not in the few collectives that all ranks take part in.
    late_s = traced.late_s()
    is_late = _has_stages(traced) or late_s[slow] >= _LATE * sum(late_s.values())
    return slow if is_late else None


def _of_slow(ranks: Sequence[MeasuredRank], slow: int, traced: TracedRanks) -> str:
    mine = ranks[slow]
    rest = [each for index, each in enumerate(ranks) if index != slow]
    more: Mapping[str, float] = {
        name: mine.classes_s[name] - float(np.median([each.classes_s[name] for each in rest]))
        for name in CLASSES
        if name not in {WAITING, COMMUNICATION}
    }
    most = max(more, key=lambda name: more[name])
    words = (
        f"rank {mine.rank} works {format_time(mine.own_s)} of a step, the others "
        f"{format_time(float(np.median([each.own_s for each in rest])))}; it has "
        f"{format_time(more[most])} more of {most}"
    )
    if not traced.matched or _has_stages(traced):
        return words
    late_s = traced.late_s()
    share = late_s[slow] / (sum(late_s.values()) or 1)
    return f"{words}, and {share:.0%} of the waiting in collectives is for it"


def _of_buckets(predicted: PredictedStep, ranks: Sequence[MeasuredRank], count: float) -> str:
    sizes = [each.sizes_bytes for each in ranks if each.sizes_bytes is not None]
    of_size = f" of {format_bytes(float(np.mean(sizes)))} each" if sizes else ""
    return f"{count:.0f} exchanges a step{of_size}, {predicted.collectives} predicted"


def trace_paths(first: Sequence[Path], more: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that follow `--trace` on a command line.

    Raises:
        RunError: None is named.
        JobError: One is another file of Wattree's.
    """
    if not first:
        raise RunError("--trace", ["expected the traces of the ranks, one file for each"])
    for path in (*first, *more):
        check_kind(path, "a trace of PyTorch's profiler (JSON)")
        yield path
