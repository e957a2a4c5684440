"""Residual spreads by class of evidence, and coverage of prediction intervals.

A spread is the one with which 80 % of the rows of its class lie inside their intervals, given what
the constants' own spreads make of these (conformal: no shape of the errors is assumed but at that
quantile). Classes are fitted in turn until they stand still.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.accounts.interval import DEVIATIONS, PROBABILITY
from wattree.accounts.known import LEVELS
from wattree.arrays import Floats
from wattree.cost import Calibration, Residuals
from wattree.validation.left_out import LeftOutError, measured_by
from wattree.validation.memory_fit import MemoryRow
from wattree.validation.rows import choice_of

_ROUNDS, _HALVINGS, _MOST = 12, 40, 2.0
#: Classes with fewer rows take the spread of the class that they are nearest to.
_LEAST_ROWS = 8
_TIME = "step_time_s"


def deviation_of(each: LeftOutError, spreads: Mapping[str, float]) -> float:
    """Return the standard deviation of a left-out row's prediction under residual `spreads`."""
    own = [
        part.share
        * math.hypot(part.spread, spreads.get(f"{_TIME}.level.{each.levels.get(name)}", 0.0))
        for name, part in each.parts.items()
    ]
    return math.hypot(*own, each.known.residual(spreads))


def fitted_spreads(errors: Sequence[LeftOutError]) -> dict[str, float]:
    """Return class of evidence → residual spread of step times."""
    members = _members(errors)
    weights = _weights(errors)
    spreads = dict.fromkeys(members, 0.05) | {f"{_TIME}.software.measured": 0.0}
    for _ in range(_ROUNDS):
        for name, chosen in members.items():
            own = [errors[i] for i in chosen]
            spreads[name] = fitting_spread(
                np.abs([each.error for each in own]),
                weights[chosen],
                lambda spread, own=own, name=name: np.array(  # type: ignore[misc]
                    [deviation_of(each, {**spreads, name: spread}) for each in own]
                ),
            )
    return _ordered(spreads)


def _members(errors: Sequence[LeftOutError]) -> dict[str, list[int]]:
    """Return class of evidence → the rows that its spread is fitted to.

    Jobs like measured ones say what is left of each kind of model; the others, what is added by the
    first of what is not measured: device, software, size, model.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for i, each in enumerate(errors):
        known = each.known
        if known.level != LEVELS[0]:
            found[f"{_TIME}.level.{known.level}"].append(i)
        elif known.software == "generic":
            found[f"{_TIME}.software.generic"].append(i)
        elif known.size == "beyond":
            found[f"{_TIME}.size.beyond"].append(i)
        elif known.model == "new" and known.kind == "language":
            found[f"{_TIME}.model.new"].append(i)
        else:
            found[f"{_TIME}.kind.{known.kind}"].append(i)
    return {name: rows for name, rows in found.items() if len(rows) >= _LEAST_ROWS}


def _weights(errors: Sequence[LeftOutError]) -> Floats:
    """Return weights that give all hold-outs the same total weight."""
    counts: dict[str, int] = defaultdict(int)
    for each in errors:
        counts[each.hold_out] += 1
    return np.array([1.0 / counts[each.hold_out] for each in errors])


def fitting_spread(errors: Floats, weights: Floats, deviations: Callable[[float], Floats]) -> float:
    """Return the spread with which 80 % of the errors, by weight, lie in their intervals."""
    low, high = 0.0, _MOST

    def inside(spread: float) -> float:
        holds = errors <= DEVIATIONS * deviations(spread)
        return float(weights[holds].sum() / weights.sum())

    if inside(0.0) >= PROBABILITY:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if inside(middle) >= PROBABILITY:
            high = middle
        else:
            low = middle
    return high


def _ordered(spreads: Mapping[str, float]) -> dict[str, float]:
    """Return the spreads, none of a farther level below that of a nearer one.

    A level without rows lies between its neighbours; the nearest adds nothing.
    """
    names = [f"{_TIME}.level.{level}" for level in LEVELS]
    own = {0: 0.0} | {i: spreads[name] for i, name in enumerate(names) if name in spreads}
    widths = np.interp(range(len(names)), list(own), list(own.values()))
    return {**spreads, **dict(zip(names, np.maximum.accumulate(widths).tolist(), strict=True))}


def fitted_pair_spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Return what constants leave of the difference of the errors of two strategies of one job.

    Args:
        pairs: Difference of the logarithms' errors, and its standard deviation by the constants.
    """
    errors = np.abs([error for error, _ in pairs])
    own = np.array([spread for _, spread in pairs])
    return fitting_spread(errors, np.ones(len(pairs)), lambda spread: np.hypot(own, spread))


def pairs_of(
    errors: Sequence[LeftOutError], key: Callable[[LeftOutError], Hashable]
) -> list[tuple[float, float]]:
    """Return pairs of rows with one `key`: difference of errors, and its spread by constants."""
    groups: dict[Hashable, list[LeftOutError]] = defaultdict(list)
    for each in errors:
        groups[key(each)].append(each)
    return [
        (one.error - other.error, pair_deviation(one, other))
        for members in groups.values()
        for i, one in enumerate(members)
        for other in members[:i]
    ]


def pair_deviation(one: LeftOutError, other: LeftOutError) -> float:
    """Return the spread of the ratio of two step times by the constants that they share."""
    found = 0.0
    for name in one.parts.keys() | other.parts.keys():
        mine, others = one.parts.get(name), other.parts.get(name)
        share = (mine.share if mine else 0.0) - (others.share if others else 0.0)
        known = mine or others
        assert known is not None
        found = math.hypot(found, share * known.spread)
    return found


def strategy_pairs(errors: Sequence[LeftOutError]) -> list[tuple[float, float]]:
    """Return pairs of rows of one source, model, cluster and release, their source left out."""
    return pairs_of(
        [each for each in errors if each.hold_out == "source"],
        lambda each: choice_of(each.row.expressed.row),
    )


def with_residuals(
    calibration: Calibration,
    errors: Sequence[LeftOutError],
    memory: Sequence[tuple[str, MemoryRow]],
    *,
    command: str,
) -> Calibration:
    """Return a calibration with residuals that put 80 % of the rows of each class inside.

    Args:
        calibration: That the rows were left out of.
        errors: Of step times.
        memory: Software and rows of memory; none leaves theirs as they were.
        command: That remakes them.
    """
    from wattree.validation.memory_coverage import fitted_memory_spreads, left_out_memory

    spreads, rows = dict(calibration.residuals.spreads), dict(calibration.residuals.rows)
    if errors:
        spreads |= fitted_spreads(errors)
        pairs = strategy_pairs(errors)
        if len(pairs) >= _LEAST_ROWS:
            spreads[f"{_TIME}.pair"] = fitted_pair_spread(pairs)
        # Kinds of models without rows here keep their constants, and what is known of them.
        for name, known in measured_by(each.facts for each in errors).as_rows().items():
            rows[name] = tuple(sorted({*rows.get(name, ()), *known}))
    if memory:
        off = left_out_memory([row for _, row in memory], calibration)
        spreads |= fitted_memory_spreads(off)
        rows["memory_software"] = tuple(sorted({software for software, _ in memory}))
    return replace(calibration, residuals=Residuals(spreads=spreads, rows=rows, command=command))
