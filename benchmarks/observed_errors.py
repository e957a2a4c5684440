"""Accuracy gain from a user's own run: each row of a group anchors the other rows.

A group has one source, device, software and precision. What is done with a row is what `wattree
calibrate` does with a run: its error moves constants by share x spread^2 (`cost.observations`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.accounts.interval import (
    DEVIATIONS,
    PROBABILITY,
    RESIDUAL,
    deviation,
    observed_parts,
    unexplained_spread,
)
from wattree.cost import matrix_precision
from wattree.cost.observations import (
    WHOLES,
    Observation,
    as_errors_ask,
    error_weights,
    unattributed_spread,
)
from wattree.cost.precisions import precision_class
from wattree.trace import IntervalPart
from wattree.validation.coverage import deviation_of
from wattree.validation.left_out import LeftOutError

#: Rows that a group needs: one anchors, and two show how far others lie apart.
LEAST_ROWS = 3
_OBSERVED = "step_time_s.observed"
_OBSERVATION = "step_time_s.observation"
#: Of the anchors that are drawn.
_SEED = 19
#: Where the spread of a kind of models is sought, and how finely: to a hundredth of itself.
_LEAST, _MOST, _HALVINGS, _TRIALS = 0.01, 0.5, 9, 15
#: Mean squared error that is as good as the least, over it.
_CLOSE = 1.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedError:
    """A row as it is predicted with another row of its group as a run of the user's own.

    Attributes:
        hold_out: What the fit had not seen; `nothing` of the constants that ship.
        group: Source, device, software and precision.
        anchor, row: Row ids.
        kind: Of the predicted row's model.
        before, after: Logarithm of predicted over measured, without and with the anchor.
        spread_before, spread: Standard deviations that were predicted.
    """

    hold_out: str
    group: tuple[str, ...]
    anchor: str
    row: str
    kind: str
    before: float
    after: float
    spread_before: float
    spread: float

    @property
    def inside(self) -> bool:
        """Whether the row lies in its 80 % interval."""
        return abs(self.after) <= DEVIATIONS * self.spread


def groups_of(
    errors: Iterable[LeftOutError],
) -> dict[tuple[str, tuple[str, ...]], list[LeftOutError]]:
    """Return (hold-out, group) → its rows, of groups that are large enough."""
    found: dict[tuple[str, tuple[str, ...]], list[LeftOutError]] = defaultdict(list)
    for each in errors:
        row, job = each.row.expressed.row, each.row.expressed.job
        group = (row.source_id, each.facts.device, each.facts.software, str(job.precision))
        found[each.hold_out, group].append(each)
    return {key: rows for key, rows in found.items() if len(rows) >= LEAST_ROWS}


def observation_of(each: LeftOutError, spreads: Mapping[str, float]) -> Observation:
    """Return a row as an observation of a user's own run."""
    parts, known = each.at_levels, each.known
    return Observation(
        what="step",
        job=each.row.expressed.row.row_id,
        device=each.facts.device,
        software=each.facts.software,
        kind=each.facts.kind,
        precision=precision_class(matrix_precision(each.row.expressed.job.precision)),
        measured_s=each.row.measured_s,
        predicted_s=each.row.measured_s * math.exp(each.error),
        parts={**parts, RESIDUAL: IntervalPart(share=1.0, spread=known.alike(spreads))},
        noise=known.observation_noise(spreads),
    )


def observed_errors(
    errors: Iterable[LeftOutError], spreads: Mapping[str, float]
) -> Iterator[ObservedError]:
    """Yield the error of each row of each group with each other row of it as the anchor."""
    for (_, group), rows in groups_of(errors).items():
        for anchor in rows:
            run = observation_of(anchor, spreads)
            for row in rows:
                if row is not anchor:
                    yield _error(group, [run], row, spreads)


def several_errors(
    errors: Iterable[LeftOutError], spreads: Mapping[str, float], runs: int
) -> Iterator[ObservedError]:
    """Yield the error of each row with so many others of its group as anchors, drawn at random."""
    draw = np.random.default_rng(_SEED)
    for (_, group), rows in groups_of(errors).items():
        observed = [observation_of(row, spreads) for row in rows]
        for index, row in enumerate(rows):
            others = [other for other in range(len(rows)) if other != index]
            if len(others) >= runs:
                chosen = draw.choice(others, runs, replace=False).tolist()
                yield _error(group, [observed[other] for other in chosen], row, spreads)


def _error(
    group: tuple[str, ...],
    runs: Sequence[Observation],
    row: LeftOutError,
    spreads: Mapping[str, float],
) -> ObservedError:
    mine = observation_of(row, spreads)
    alike = [run if run.kind == mine.kind else _of_another_kind(run) for run in runs]
    own = [run for run in runs if run.kind == mine.kind]
    alike = list(as_errors_ask(alike))
    errors = np.array([run.error for run in runs])
    # What a run errs by as a whole moves all constants of the row, too.
    wholes = {name: part for run in alike for name, part in run.parts.items() if name in WHOLES}
    after = row.error + float(error_weights(alike, {**mine.parts, **wholes}) @ errors)
    # Without runs, intervals reach farther up.
    above, below = (deviation_of(replace(row, error=side), spreads) for side in (-1.0, 1.0))
    spread = above if after < 0.0 else below
    if own:
        left = observed_parts(row.at_levels, row.known, own, spreads)
        whole, residual = deviation(left), left[RESIDUAL].deviation
        if 2.0 * whole > above + below:
            whole, residual = spread, row.known.residual(spreads)
        off = max(unexplained_spread(runs, own), unattributed_spread(runs), residual)
        spread = math.sqrt(whole**2 - residual**2 + off**2)
    return ObservedError(
        hold_out=row.hold_out,
        group=group,
        anchor=", ".join(run.job for run in runs),
        row=row.row.expressed.row.row_id,
        kind=row.facts.kind,
        before=row.error,
        after=after,
        spread_before=deviation_of(row, spreads),
        spread=spread,
    )


def _of_another_kind(run: Observation) -> Observation:
    """Return a run whose kind of model errs by something of its own."""
    parts = {name: part for name, part in run.parts.items() if name != RESIDUAL}
    return replace(run, parts=parts, noise=math.hypot(run.noise, run.parts[RESIDUAL].spread))


def fitted_noise(errors: Sequence[LeftOutError], spreads: Mapping[str, float]) -> dict[str, float]:
    """Return the noise of one run by kind of model, as a prediction and as an observation.

    With the first, as both, 80 % of the rows lie inside their intervals where another row of their
    group and kind anchors them. The second is the largest with which the mean squared error of
    anchored rows is within 1 % of the least: runs are trusted no more than that takes. All
    hold-outs count alike.
    """
    found = {}
    for kind in sorted({each.facts.kind for each in errors}):
        own = [each for each in errors if each.facts.kind == kind]
        observed, observation = f"{_OBSERVED}.{kind}", f"{_OBSERVATION}.{kind}"
        found[observed] = _noise(own, {**spreads, observation: 0.0}, observed)
        found[observation] = _noise_of_least_error(own, {**spreads, **found}, observation)
    return found


def _noise_of_least_error(
    errors: Sequence[LeftOutError], spreads: Mapping[str, float], name: str
) -> float:
    trials: list[float] = np.geomspace(_LEAST, _MOST, _TRIALS).round(4).tolist()
    squares = [
        mean_square(list(observed_errors(errors, {**spreads, name: trial}))) for trial in trials
    ]
    close = [
        trial
        for trial, square in zip(trials, squares, strict=True)
        if square <= _CLOSE * min(squares)
    ]
    return max(close)


def _noise(errors: Sequence[LeftOutError], spreads: Mapping[str, float], name: str) -> float:
    # The anchors' weights follow the noise, so each trial spread predicts all rows anew.
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if coverage(list(observed_errors(errors, {**spreads, name: middle}))) >= PROBABILITY:
            high = middle
        else:
            low = middle
    return high


def coverage(rows: Sequence[ObservedError]) -> float:
    """Return how many rows lie inside their intervals, all hold-outs alike; 1 without rows."""
    return _mean(rows, lambda each: each.inside) if rows else 1.0


def mean_square(rows: Sequence[ObservedError]) -> float:
    """Return the mean squared error of anchored rows, all hold-outs alike; 0 without rows."""
    return _mean(rows, lambda each: each.after**2) if rows else 0.0


def _mean(rows: Sequence[ObservedError], value: Callable[[ObservedError], float]) -> float:
    """Return the mean over hold-outs of their mean values."""
    by: dict[str, list[float]] = defaultdict(list)
    for each in rows:
        by[each.hold_out].append(value(each))
    return float(np.mean([np.mean(values) for values in by.values()]))
