"""Time constants of computing, communicating and their overlap, from runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.energy.calibration import StageConstant, Status, no_value
from wattree.energy.least_squares import (
    NonNegativeFit,
    dependent_columns,
    non_negative_fit,
    quantile,
)
from wattree.energy.observed import (
    Observations,
    busy_s,
    ranks_of,
    samples_on_a_rank,
    sent_bytes,
    span_of,
)
from wattree.energy.stages import BACKWARD_SHARE, AllReduce, latency_steps
from wattree.trace.run import Activity, Run

_COMPUTING = (
    "time.computing.s_per_flop",
    "time.computing.s_per_sample",
    "time.computing.overhead_s",
    "time.computing.half_batch",
    "time.computing.s_per_byte",
)
#: An algorithm that explains a sweep better by less than this is not distinguished by it.
_BETTER = 1.1
_OVERLAPS = np.linspace(0.0, 1.0, 101)
_STEP = 0.01
#: An interval of φ that spans more than this, of the whole range of 1, tells little.
_WIDE = 0.5
_BY_SAMPLES = "FLOP are not known in every run: computing is by samples, of each model its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Constants of computing, with the relative slowness of each model."""

    constants: Mapping[str, StageConstant]
    ratios: Mapping[str, float]
    warnings: tuple[str, ...]


def computing_rows(seen: Observations) -> tuple[list[tuple[Run, float]], str]:
    """Return runs with the time of computing in a step, and a description of them."""
    resident = [
        (run, (busy_s(run, "computing") or 0.0) / run.iterations)
        for run in seen.of(Activity.RESIDENT)
    ]
    if resident:
        return resident, ""
    training = seen.of(Activity.TRAINING)
    labeled = [run for run in training if "computing" in run.stages]
    rows = [(run, (busy_s(run, "computing") or 0.0) / run.iterations) for run in labeled]
    if rows:
        return rows, "no run with resident data: computing is timed by the stages of training runs"
    alone = [(run, run.wall_s / run.iterations) for run in training if ranks_of(run) == 1]
    word = "no run with resident data, and no stages: computing is timed by whole steps of one rank"
    return alone, word if alone else ""


def fit_computing(seen: Observations) -> Computing:
    """Return the constants of `t_C = a0 + F / (R η∞) (1 + b½ / b) + κ V_mem`.

    Linear in `a0`, `1/(R η∞)`, `b½/(R η∞)` and `κ`; rows are weighted by one over their time.
    """
    rows, word = computing_rows(seen)
    rows = [(run, time_s) for run, time_s in rows if run.work.flop or run.work.samples]
    if not rows:
        absent = no_value("no run has both work and time of computing")
        constants = dict.fromkeys(_COMPUTING, absent)
        return Computing(constants=constants, ratios={}, warnings=())
    constants = dict.fromkeys(_COMPUTING, no_value("its work is not known in every such run"))
    times = np.array([time_s for _, time_s in rows])
    by_flop = all(run.work.flop for run, _ in rows)
    if not by_flop:
        word = "; ".join([*([word] if word else []), _BY_SAMPLES])
    columns = np.array([_computing_columns(run, by_flop=by_flop) for run, _ in rows])
    present = [i for i in range(len(_COMPUTING)) if np.isfinite(columns[:, i]).all()]
    present = [i for i in present if (columns[:, i] > 0).any()]
    dependent = dependent_columns(columns / times[:, None], present)
    kept = [i for i in present if i not in dependent]
    solution = non_negative_fit(columns[:, kept], times, 1.0 / times)
    warnings = [word] if word else []
    for index, partners in dependent.items():
        others = ", ".join(_COMPUTING[partner] for partner in partners)
        stand = "stands for it" if len(partners) == 1 else "stand for it together"
        constants[_COMPUTING[index]] = no_value(
            f"{others} {stand}", Status.INSEPARABLE, runs=len(rows)
        )
        warnings.append(f"{_COMPUTING[index]} cannot be distinguished from {others}")
    constants |= _computing_constants([_COMPUTING[i] for i in kept], solution, len(rows))
    ratios = times / (columns[:, kept] @ solution.values)
    by_model: dict[str, list[float]] = {}
    for (run, _), ratio in zip(rows, ratios, strict=True):
        by_model.setdefault(run.model, []).append(float(ratio))
    return Computing(
        constants=constants,
        ratios={model: float(np.median(each)) for model, each in by_model.items()},
        warnings=tuple(warnings),
    )


def _computing_columns(run: Run, *, by_flop: bool) -> tuple[float, ...]:
    """Return the regressors of `t_C` for one rank and step; NaN if unknown or unused."""
    ranks, samples = ranks_of(run), samples_on_a_rank(run)
    if not by_flop:
        return np.nan, samples or np.nan, 1.0, np.nan, np.nan
    flop = (run.work.flop or 0.0) / ranks
    memory = np.nan if run.work.memory_bytes is None else run.work.memory_bytes / ranks
    return flop, np.nan, 1.0, flop / samples if samples else np.nan, memory


def _computing_constants(
    names: Sequence[str], solution: NonNegativeFit, rows: int
) -> dict[str, StageConstant]:
    constants = {name: constant_of(solution, index, rows) for index, name in enumerate(names)}
    half = constants.get("time.computing.half_batch")
    if half is not None and half.value is not None:
        # The fit has b½/(R η∞); the constant is b½. Its relative error is that of the quotient.
        speed = float(solution.values[names.index("time.computing.s_per_flop")])
        scale = 1.0 / speed if speed > 0 else 0.0
        constants["time.computing.half_batch"] = replace(
            half,
            value=half.value * scale,
            lower=None if half.lower is None else half.lower * scale,
            upper=None if half.upper is None else half.upper * scale,
        )
    return constants


def constant_of(solution: NonNegativeFit, index: int, runs: int) -> StageConstant:
    """Return a coefficient of a fit as a constant, with what is to be said of its interval."""
    value, upper = float(solution.values[index]), float(solution.upper[index])
    if not np.isfinite(upper):
        note = "no interval: as many constants as runs"
        return StageConstant(value=value, status=Status.WEAK, runs=runs, note=note)
    lower = float(solution.lower[index])
    status = Status.FITTED if lower > 0 else Status.WEAK
    note = "" if lower > 0 else "its interval reaches zero"
    if value <= 0:
        status, note = Status.BOUND, "the runs want none of it"
    return StageConstant(value=value, lower=lower, upper=upper, status=status, runs=runs, note=note)


def fit_network(
    seen: Observations,
) -> tuple[dict[str, StageConstant], dict[str, AllReduce], list[str]]:
    """Return α, β and algorithm of all-reduces within and between nodes, and what is undetermined.

    A sweep of collectives; without one, training runs whose stages tell how long theirs took.
    """
    constants: dict[str, StageConstant] = {}
    algorithms: dict[str, AllReduce] = {}
    warnings: list[str] = []
    for span in ("within", "between"):
        names = (f"time.network.{span}.alpha_s", f"time.network.{span}.bytes_per_s")
        rows, word = _network_rows(seen, span)
        if not rows:
            constants |= dict.fromkeys(names, no_value(f"no collective {span} nodes"))
            continue
        warnings += [word] if word else []
        fits = {each: _network_fit(rows, each) for each in AllReduce}
        ring, halving = (_misfit(fits[each]) for each in AllReduce)
        algorithm = AllReduce.HALVING if halving * _BETTER < ring else AllReduce.RING
        if max(ring, halving) <= _BETTER * min(ring, halving):
            warnings.append(
                f"collectives {span} nodes: ring and halving explain the times as well; "
                "ring is assumed, whose latency grows faster with nodes"
            )
        algorithms[span] = algorithm
        kept, solution = fits[algorithm]
        alpha = (
            constant_of(solution, kept.index(0), len(rows))
            if 0 in kept
            else no_value("one size and number of ranks: in β", Status.INSEPARABLE)
        )
        constants[names[0]] = alpha
        constants[names[1]] = _rate(constant_of(solution, kept.index(1), len(rows)))
        if 0 not in kept:
            warnings.append(f"{names[0]} cannot be distinguished from {names[1]}: vary the size")
    return constants, algorithms, warnings


def _rate(slowness: StageConstant) -> StageConstant:
    """Return a rate from seconds per byte."""
    if not slowness.value:
        return no_value(slowness.note, Status.BOUND, runs=slowness.runs)
    return replace(
        slowness,
        value=1.0 / slowness.value,
        lower=None if not slowness.upper else 1.0 / slowness.upper,
        upper=None if not slowness.lower else 1.0 / slowness.lower,
    )


def _network_rows(seen: Observations, span: str) -> tuple[list[tuple[Run, float]], str]:
    here = [run for run in seen.runs if ranks_of(run) > 1 and span_of(run) == span]
    sweep = [run for run in here if run.activity is Activity.COLLECTIVE]
    chosen = sweep or [run for run in here if run.activity is Activity.TRAINING]
    rows = []
    for run in chosen:
        seconds = busy_s(run, "communicating")
        if seconds and sent_bytes(run):
            rows.append((run, seconds / run.iterations))
    word = (
        ""
        if sweep or not rows
        else (f"no sweep of collectives {span} nodes: α and β are those that overlap computing")
    )
    return rows, word


def _network_fit(
    rows: Sequence[tuple[Run, float]], algorithm: AllReduce
) -> tuple[list[int], NonNegativeFit]:
    """Return the columns (0 α, 1 seconds per byte) that the rows can separate, and their fit."""
    times = np.array([time_s for _, time_s in rows])
    columns = np.array(
        [
            (latency_steps(ranks_of(run), algorithm), (sent_bytes(run) or 0.0) / ranks_of(run))
            for run, _ in rows
        ]
    )
    dependent = dependent_columns(columns / times[:, None], (1, 0))
    kept = [index for index in (0, 1) if index not in dependent]
    return kept, non_negative_fit(columns[:, kept], times, 1.0 / times)


def _misfit(fit: tuple[list[int], NonNegativeFit]) -> float:
    return max(fit[1].scatter, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedOverlap:
    """A training run with its step time as a function of overlap. [s]

    Attributes:
        computing, communicating: Times of the stages in a step, as the constants say.
        materials: The same; what is longer than the rest sets the pace, or adds to it where nothing
            is prefetched.
    """

    run: Run
    computing: float
    communicating: float
    materials: float

    def errors(self, overlaps: Floats) -> Floats:
        """Return the relative error of the step time for each overlap."""
        # As `exposed_communicating_s`, for many at once.
        waits = np.maximum(self.communicating - overlaps * BACKWARD_SHARE * self.computing, 0.0)
        use = self.run.stages.get("communicating")
        step_s = self.run.wall_s / self.run.iterations
        if use is not None:  # the labeled wait says more than the whole step
            return np.asarray((waits - use.exposed_s / self.run.iterations) / step_s)
        without_data = self.computing + waits
        if self.run.prefetch is False:
            return np.asarray((without_data + self.materials) / step_s - 1.0)
        return np.asarray(np.maximum(without_data, self.materials) / step_s - 1.0)


def fit_overlap(cases: Sequence[FittedOverlap]) -> StageConstant:
    """Return φ, the fraction of backward that gradient communication overlaps with.

    The value with the least sum of squared errors; its interval is the profile's: all values whose
    sum is no larger than `1 + t²/(n - 1)` times the least. Where all communication is hidden, the
    profile is flat, and the constant only a lower bound.
    """
    if not cases:
        note = "no training run on several ranks with known α and β"
        return no_value(note)
    coarse = float(_OVERLAPS[_sums(cases, _OVERLAPS).argmin()])
    near = np.linspace(max(coarse - _STEP, 0.0), min(coarse + _STEP, 1.0), len(_OVERLAPS))
    overlaps = np.union1d(_OVERLAPS, near)
    sums = _sums(cases, overlaps)
    least = float(sums.min())
    at_least = np.flatnonzero(sums <= least * (1 + 1e-9) + 1e-15)
    value = float(overlaps[at_least[0]])
    freedom = len(cases) - 1
    if len(at_least) > 1 and at_least[-1] == len(overlaps) - 1:
        note = "all communication is hidden: any larger share explains the runs as well"
        return StageConstant(
            value=value, lower=value, upper=1.0, status=Status.BOUND, runs=len(cases), note=note
        )
    if freedom < 1:
        return StageConstant(value=value, status=Status.WEAK, runs=1, note="one run: no interval")
    inside = overlaps[sums <= least * (1 + quantile(freedom) ** 2 / freedom) + 1e-15]
    lower, upper = float(inside.min()), float(inside.max())
    status, note = Status.FITTED, ""
    if lower <= 0 < value or upper - lower > _WIDE:
        status = Status.WEAK
        note = f"any share from {lower:.2g} to {upper:.2g} explains the runs about as well"
    return StageConstant(
        value=value, lower=lower, upper=upper, status=status, runs=len(cases), note=note
    )


def _sums(cases: Sequence[FittedOverlap], overlaps: Floats) -> Floats:
    return np.asarray(sum(case.errors(overlaps) ** 2 for case in cases))
