"""Learn constants of a device and its software from step times that a user measured.

The measured error moves constants by share x spread^2 (`cost.observations`): a single step time
tells one direction, that in which the prediction is least sure. Steps are predicted anew with the
moved constants until these stand still, as shares are those of a straight line.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wattree.accounts.interval import DEVIATIONS, deviation
from wattree.cost import (
    SHIPPED_BASE,
    Calibration,
    constant_lines,
    load_calibration,
    residual_lines,
)
from wattree.cost.observation_file import observation_lines
from wattree.cost.observations import (
    DOUBTFUL,
    Observation,
    moved,
    remaining_uncertainty,
    shared,
)
from wattree.errors import RunError
from wattree.files import write_atomic
from wattree.kinds import schema_line
from wattree.learn.case import Case, case_of
from wattree.learn.constants import class_words, moved_constants
from wattree.learn.observe import (
    linearized,
)
from wattree.learn.own_steps import OwnStep
from wattree.trace import IntervalPart
from wattree.units import counted

#: Rounds until the moves stand still, how still, and how far one round moves them at most.
_ROUNDS, _STILL, _FARTHEST = 20, 3e-4, 1.0
#: No machine is so many times as fast or slow as its like. A slip of a unit is 1000; collectives of
#: processes that a busy machine does not run at once were seen at 52.
_MOST = 500.0
#: Of errors above the first, predictions that follow by less than this part are explained.
_MOVED, _FOLLOWED = 0.05, 0.25

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedStep:
    """A measured step, with its predictions before and after learning.

    Attributes:
        job: File of the job.
        measured_s: The step, or the mean of several of one job. [s]
        before_s, after_s: Predicted without and with the run. [s]
        before, after: What the predictions lie between with 80 % probability. [s]
    """

    job: str
    measured_s: float
    before_s: float
    after_s: float
    before: tuple[float, float]
    after: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedMove:
    """How much the time of a class of constants changed.

    Attributes:
        name: The class; `residual` of what all of the step errs by alike; `step` or `computing` of
            what such a time errs by beyond the spreads of its classes.
        spread_before, spread: Standard deviation of its logarithm.
    """

    name: str
    factor: float
    spread_before: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCalibration:
    """Result of learning from runs.

    Attributes:
        device, software: What the constants are of.
        moves: Largest first.
        written: The file of constants.
        warnings: Runs that say more of a fault than of a machine.
    """

    device: str
    software: str
    moves: tuple[LearnedMove, ...]
    steps: tuple[LearnedStep, ...]
    written: Path
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain types."""
        return {**asdict(self), "written": str(self.written)}


def calibrate(
    steps: Sequence[OwnStep], *, out: Path, base: Path | None = None, progress: Progress
) -> LearnedCalibration:
    """Learn from measured steps, and write a file of constants.

    Args:
        steps: Of one kind of device and one software family.
        out: The file.
        base: Constants to begin with; those that ship if None.
        progress: Called with (stage, done, total).

    Raises:
        RunError: Runs contradict their jobs, or are of several devices or families.
        WattreeError: A job cannot be predicted.
        OutputError: `out` cannot be written.
    """
    first = load_calibration(base)
    if first.observations:
        raise RunError(
            str(base),
            ["rests on runs of your own already; give all runs at once, from the constants before"],
        )
    _refuse_mixed(steps)
    groups: dict[str, list[OwnStep]] = defaultdict(list)
    for step in steps:
        groups[step.job.source].append(step)
    cases = []
    for done, members in enumerate(groups.values()):
        progress("predicting runs", done, len(groups))
        cases.append(case_of(members, first))
    learned, moves = _learned(cases, first, progress)
    _write(out, learned, first)
    return _report(cases, learned, moves, out)


def _refuse_mixed(steps: Sequence[OwnStep]) -> None:
    """Reject runs that use different constants."""
    devices = {pool.node.device.name for step in steps for pool in step.job.cluster.pools}
    families = {step.job.software for step in steps}
    problems = []
    if len(devices) > 1:
        problems.append(f"runs on {', '.join(sorted(devices))}; expected one kind of device")
    if len(families) > 1:
        problems.append(f"runs by {', '.join(sorted(families))}; expected one software family")
    problems += [
        f"{step.job.source}: has neighbours, whose part in the step no one knows"
        for step in steps
        if step.job.neighbours
    ]
    if problems:
        raise RunError("calibrate", problems)


def _learned(
    cases: Sequence[Case], base: Calibration, progress: Progress
) -> tuple[Calibration, dict[str, float]]:
    """Return the constants that minimize the runs' errors within their spreads, and the moves."""
    moves: dict[str, float] = {}
    last: dict[str, float] = {}
    for done in range(_ROUNDS):
        progress("learning", done, _ROUNDS)
        found = moved(_linearized(cases, moves))
        ahead = {name: move - moves.get(name, 0.0) for name, move in found.items()}
        step = max(map(abs, ahead.values()))
        went_too_far = math.fsum(last.get(name, 0.0) * each for name, each in ahead.items()) < 0.0
        part = min(1.0, _FARTHEST / max(step, _STILL)) * (0.5 if went_too_far else 1.0)
        moves = {name: moves.get(name, 0.0) + part * each for name, each in ahead.items()}
        last = ahead
        _predict(cases, _with(base, cases, moves))
        if step < _STILL:
            break
    _refuse_far(cases, moves)
    for case in cases:
        off = case.unexplained
        case.observations = tuple(replace(each, unexplained=off) for each in case.observations)
    learned = _with(base, cases, moves)
    learned = replace(learned, observations=_linearized(cases, moves))
    _predict(cases, learned)
    progress("learning", _ROUNDS, _ROUNDS)
    return learned, moves


def _predict(cases: Sequence[Case], constants: Calibration) -> None:
    for case in cases:
        case.predict(constants)


def _refuse_far(cases: Sequence[Case], moves: Mapping[str, float]) -> None:
    """Reject implausible constants: the job is not what was run.

    Raises:
        RunError: A class moved that far.
    """
    far = [
        f"{name}: {math.exp(move):.3g} times as long as the constants say; the job is not what was "
        "run, or its cluster is not the machine of the run"
        for name, move in moves.items()
        if abs(move) > math.log(_MOST)
    ]
    if far:
        raise RunError(", ".join(case.job for case in cases), far)


def _linearized(cases: Sequence[Case], moves: Mapping[str, float]) -> tuple[Observation, ...]:
    """Return the observations by the straight line through the latest prediction: of `moves`."""
    return tuple(
        linearized(each, case.now, case.times_s[each.what], moves)
        for case in cases
        for each in case.observations
    )


def _with(base: Calibration, cases: Sequence[Case], moves: Mapping[str, float]) -> Calibration:
    """Return the constants with their moves applied."""
    constants = moved_constants(
        base,
        cases[0].setting(base),
        moves=moves,
        spreads={name: left for name, (_, left) in _spreads(_linearized(cases, moves)).items()},
        source=f"{counted(len(cases), 'run')} of your own (wattree calibrate)",
    )
    return replace(base, constants={**base.constants, **constants})


def _spreads(observations: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Return class → its spread before the observations, and the spread that remains."""
    found = {}
    for each in shared(observations):
        for name, part in each.parts.items():
            alone = {name: IntervalPart(share=1.0, spread=part.spread)}
            left, noise = remaining_uncertainty(observations, alone)
            found[name] = (part.spread, math.hypot(deviation(left), noise))
        # What all of it errs by has no spread before that of its classes.
        whole = {each.what: IntervalPart(share=1.0, spread=0.0)}
        left, noise = remaining_uncertainty(observations, whole)
        found[each.what] = (deviation(each.parts), math.hypot(deviation(left), noise))
    return found


def _write(out: Path, learned: Calibration, base: Calibration) -> None:
    shipped = load_calibration()
    own = {
        name: constant
        for name, constant in learned.constants.items()
        if shipped.constants.get(name) != constant
    }
    head = [
        schema_line("calibration"),
        "# Constants learned from your own runs by `wattree calibrate`.",
        f"base: {SHIPPED_BASE}",
        "",
    ]
    lines = [*head, *constant_lines(own), *observation_lines(learned.observations)]
    if base.residuals != shipped.residuals:
        lines += residual_lines(base.residuals)
    write_atomic(out, "\n".join(lines) + "\n")


def _report(
    cases: Sequence[Case], learned: Calibration, moves: Mapping[str, float], out: Path
) -> LearnedCalibration:
    spreads = _spreads(learned.observations)
    found = [
        LearnedMove(
            name=name,
            factor=math.exp(move),
            spread_before=spreads[name][0],
            spread=spreads[name][1],
        )
        for name, move in moves.items()
    ]
    first = learned.observations[0]
    return LearnedCalibration(
        device=first.device,
        software=first.software,
        moves=tuple(sorted(found, key=lambda each: -abs(math.log(each.factor)))),
        steps=tuple(
            LearnedStep(
                job=case.job,
                measured_s=case.measured_s,
                before_s=case.base.step_time_s,
                after_s=case.now.step_time_s,
                before=case.base.interval["step_time_s"],
                after=case.now.interval["step_time_s"],
            )
            for case in cases
        ),
        written=out,
        warnings=(*_doubts(cases), *_far_moves(found), *_unmoved(cases, moves)),
    )


def _far_moves(moves: Sequence[LearnedMove]) -> Iterator[str]:
    """Yield the classes of constants that moved by more than machines differ."""
    for each in moves:
        if abs(math.log(each.factor)) > DOUBTFUL * each.spread_before:
            yield (
                f"{class_words(each.name)}: {each.factor:.3g} times as long as usual; right "
                "for jobs like these runs, but doubtful for others of the device or the software"
            )


def _unmoved(cases: Sequence[Case], moves: Mapping[str, float]) -> Iterator[str]:
    """Yield why predictions hardly follow a run: its constants stay, or set little of its time."""
    for case in cases:
        went = math.log(case.now.step_time_s / case.base.step_time_s)
        if abs(case.error) < _MOVED or went / case.error > _FOLLOWED:
            continue
        parts = case.observations[0].parts.items()
        asked = math.fsum(part.share * moves.get(name, 0.0) for name, part in parts)
        if case.unexplained or asked / case.error > _FOLLOWED:
            why = "most of the difference is time that no constant sets, such as waiting or copies"
        else:
            noise = math.expm1(max(each.noise for each in case.observations))
            why = (
                f"each job like it errs by some {noise:.0%} of its own, so times of one, however "
                "many, hardly correct others; runs of other jobs that err alike would"
            )
        yield (
            f"{case.job}: the prediction moves by {math.expm1(went):.1%} where the run differs by "
            f"{math.expm1(case.error):.0%}: {why}"
        )


def _doubts(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the runs that differ from their predictions by more than machines differ."""
    for case in cases:
        yield from case.doubts
        low, high = case.base.interval["step_time_s"]
        off = case.error
        bound = high if off > 0 else low
        width = abs(math.log(bound / case.base.step_time_s)) / DEVIATIONS
        if abs(off) > DOUBTFUL * width:
            yield (
                f"{case.job}: a step takes {abs(math.expm1(off)):.0%} "
                f"{'longer' if off > 0 else 'less time'} than predicted, far outside the interval: "
                "a fault of the run, or of the job's description, would be learned as one of the "
                "machine; wattree explain says where the time goes"
            )
