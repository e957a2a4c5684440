"""Residual spreads by class of evidence, and coverage of prediction intervals.

A spread is the one with which 10 % of the rows of its class are faster than their intervals, given
what the constants' own spreads make of these, and what steps of its software lose that with which
10 % are slower (conformal: no shape of the errors is assumed but at these quantiles). Classes are
fitted in turn until they stand still.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wattree.accounts.interval import DEVIATIONS, PROBABILITY
from wattree.accounts.known import (
    GENERIC,
    LEVELS,
    SOFTWARE,
    EvidenceClass,
    group_of,
    level_name,
)
from wattree.arrays import Floats
from wattree.cost import Calibration, Residuals
from wattree.cost.calibration import LOOPS, RUN_SLOWER
from wattree.validation.hold_outs import RANDOM
from wattree.validation.left_out import (
    AS_WRITTEN,
    PUBLISHED,
    LeftOutError,
    UnseenError,
    measured_by,
)
from wattree.validation.memory_fit import MemoryRow
from wattree.validation.rows import choice_of

if TYPE_CHECKING:
    from wattree.validation.memory_coverage import LeftOutMemory

_ROUNDS = 12
#: Relative rounding of sums of weights.
_ROUNDING = 1e-12
#: Rows that have less of the square of a spread in their variance say nothing of it.
_LEAST_SCALE = 0.01
#: Classes with fewer rows take the spread of the class that they are nearest to.
_LEAST_ROWS = 8
_TIME = "step_time_s"
#: Publishers of runs of a class that tell as much of it as all rows that were left out, and of jobs
#: as first written, that alone tell how much slower steps are (chosen).
_PUBLISHERS = 40
#: Part of the errors on either side of an interval's end.
_ONE_SIDE = (1.0 + PROBABILITY) / 2.0
#: Classes that no row is of.
_BY_PUBLISHED = (".form.new", f".software.{GENERIC}", *(f".slower.{loop}" for loop in LOOPS[1:]))
#: Hold-outs of runs that others published.
_OTHERS = (PUBLISHED, AS_WRITTEN)


def deviation_of(each: UnseenError, spreads: Mapping[str, float]) -> float:
    """Return the standard deviation of a left-out row's prediction under residual `spreads`.

    On the side of the prediction on which the row is.
    """
    variance = _variance_below(each, spreads)
    slower = each.known.slower(spreads) if each.error < 0.0 else 0.0
    return math.sqrt(variance + slower**2)


def _variance_below(each: UnseenError, spreads: Mapping[str, float]) -> float:
    constants, scales = _variance(each)
    return constants + sum(scale * spreads.get(name, 0.0) ** 2 for name, scale in scales.items())


def _variance(each: UnseenError) -> tuple[float, dict[str, float]]:
    """Return the variance by constants, and residual spread → what its square is multiplied by."""
    group = group_of(each.known.kind)
    constants, scales = 0.0, dict.fromkeys(each.known.classes.values(), 1.0)
    for name, part in each.parts.items():
        constants += part.deviation**2
        level = level_name(group, each.levels.get(name))
        scales[level] = scales.get(level, 0.0) + part.share**2
    return constants, scales


def fitted_spreads(
    errors: Sequence[UnseenError], known: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return class of evidence → residual spread of step times.

    Args:
        errors: Of predictions.
        known: Spreads of classes of which there are no errors.
    """
    squares = np.array([max(each.error, 0.0) ** 2 for each in errors])
    variances = [_variance(each) for each in errors]
    members = _members(errors, [scales for _, scales in variances])
    weights = {name: _weights([errors[i] for i in rows]) for name, rows in members.items()}
    constants = np.array([own for own, _ in variances])
    spreads = dict(known or {}) | dict.fromkeys(members, 0.05)
    scales = {
        name: np.array([found.get(name, 0.0) for _, found in variances])
        for name in {name for _, found in variances for name in found}
    }
    for _ in range(_ROUNDS):
        for name, chosen in members.items():
            others = constants[chosen] + sum(
                scale[chosen] * spreads.get(other, 0.0) ** 2
                for other, scale in scales.items()
                if other != name
            )
            spreads[name] = fitting_spread(
                squares[chosen], weights[name], others, scales[name][chosen], _ONE_SIDE
            )
    found = _ordered(spreads | _slower_spreads(errors, _ordered(spreads)))
    return found | _run_spread(errors, found)


def _slower_spreads(
    errors: Sequence[UnseenError], spreads: Mapping[str, float]
) -> dict[str, float]:
    """Return whose loop it is → by what its steps may be slower, on top of the other `spreads`.

    Jobs as they were first written tell most: later, facts that explain why a run is slow are added
    to what its source states, and rows are of loops that somebody measured to publish them.
    """
    by_loop: dict[str, list[int]] = defaultdict(list)
    for i, each in enumerate(errors):
        if each.hold_out != RANDOM:
            by_loop[each.known.slower_class].append(i)
    squares = np.array([min(each.error, 0.0) ** 2 for each in errors])
    below = np.array([_variance_below(each, spreads) for each in errors])
    return {
        name: fitting_spread(
            squares[chosen],
            _weights_of_slower([errors[i] for i in chosen]),
            below[chosen],
            np.ones(len(chosen)),
            _ONE_SIDE,
        )
        for name, chosen in by_loop.items()
        if len(chosen) >= _LEAST_ROWS
    }


def _run_spread(errors: Sequence[UnseenError], spreads: Mapping[str, float]) -> dict[str, float]:
    """Return by what whole runs may be slower on top of their steps; each publisher counts once."""
    whole = [each for each in errors if each.whole]
    if len(whole) < _LEAST_ROWS:
        return {}
    sizes = Counter(each.group for each in whole)
    return {
        RUN_SLOWER: fitting_spread(
            np.array([min(each.error, 0.0) ** 2 for each in whole]),
            np.array([1.0 / sizes[each.group] for each in whole]),
            np.array([deviation_of(each, spreads) ** 2 for each in whole]),
            np.ones(len(whole)),
            _ONE_SIDE,
        )
    }


def _weights_of_slower(errors: Sequence[UnseenError]) -> Floats:
    """Return weights that leave to other hold-outs what jobs as first written are too few for."""
    written = np.array([each.hold_out == AS_WRITTEN for each in errors])
    found = np.zeros(len(errors))
    publishers = len({each.group for each in errors if each.hold_out == AS_WRITTEN})
    share = 1.0 if written.all() else min(publishers / _PUBLISHERS, 1.0)
    for chosen, part in ((written, share), (~written, 1.0 - share)):
        own = _weights([each for each, here in zip(errors, chosen, strict=True) if here])
        found[chosen] = part * own / own.sum()
    return found


def _members(
    errors: Sequence[UnseenError], scales: Sequence[Mapping[str, float]]
) -> dict[str, list[int]]:
    """Return class of evidence → the rows that its spread is fitted to.

    Jobs like measured ones determine what is left of each kind of model; the others, what is added
    by the first of what is not measured: form, software, device, size, model. Published runs alone
    determine the first two: rows are of few forms, and of known software. Rows left out at random
    determine none: other rows of their source remain in the fit, and of a user's job none are.

    Args:
        errors: Of predictions.
        scales: Of each, spread → what its square is multiplied by in the variance.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for i, (each, own) in enumerate(zip(errors, scales, strict=True)):
        name = _class_of(each.known)
        if each.hold_out != RANDOM and own.get(name, 0.0) >= _LEAST_SCALE:
            found[name].append(i)
    return {name: rows for name, rows in found.items() if len(rows) >= _LEAST_ROWS}


def _class_of(known: EvidenceClass) -> str:
    """Return the class whose spread jobs of an evidence class determine."""
    classes = known.classes
    in_turn = (
        (classes["form"], known.form == "new"),
        (classes["software"], known.software == GENERIC),
        (level_name(group_of(known.kind), known.level), known.level != LEVELS[0]),
        (classes["software"], known.software != "measured"),
        (classes["size"], known.size == "beyond"),
        (classes["model"], known.model == "new"),
        (classes["kind"], True),
    )
    return next(name for name, holds in in_turn if holds)


def _weights(errors: Sequence[UnseenError]) -> Floats:
    """Return weights that give published runs as much as all other hold-outs together.

    A user's job is in no table of rows, and neither are published runs; each publisher has the same
    weight, and few of them less together. The other hold-outs are of rows whose tables the
    constants know in part; each has the same weight.
    """
    sizes = Counter((each.hold_out, _group(each)) for each in errors)
    groups = Counter(hold_out for hold_out, _ in sizes)
    tables = groups.keys() - set(_OTHERS)
    share = dict.fromkeys(tables, 1.0 / max(len(tables), 1))
    share |= {name: min(groups[name] / _PUBLISHERS, 1.0) if tables else 1.0 for name in _OTHERS}
    return np.array(
        [
            share[each.hold_out] / sizes[each.hold_out, _group(each)] / groups[each.hold_out]
            for each in errors
        ]
    )


def _group(each: UnseenError) -> str:
    """Return who published a run: their runs are alike."""
    return each.group if each.hold_out in _OTHERS else ""


def fitting_spread(
    squares: Floats,
    weights: Floats,
    others: Floats,
    scales: Floats,
    probability: float = PROBABILITY,
) -> float:
    """Return the spread with which as many errors, by weight, lie in their intervals.

    Args:
        squares: Of the errors.
        weights: Of the errors.
        others: Variance of each without the spread.
        scales: What the square of the spread is multiplied by in the variance of each, above 0.
        probability: How many.
    """
    needed = (squares / DEVIATIONS**2 - others).clip(0.0) / scales
    order = np.argsort(needed)
    inside = np.cumsum(weights[order])
    first = np.searchsorted(inside, probability * inside[-1] * (1.0 - _ROUNDING))
    return float(np.sqrt(needed[order[first]]))


def _ordered(spreads: Mapping[str, float]) -> dict[str, float]:
    """Return the spreads, none of what is known less below that of what is known more.

    A level without rows lies between its neighbours; the nearest adds nothing. What scripts lose
    may be more than what unknown software does.
    """
    found = dict(spreads)
    for group in ("language", "network"):
        levels = [level_name(group, level) for level in LEVELS]
        software = [f"{_TIME}.{group}.software.{known}" for known in SOFTWARE]
        for names in (levels, software):
            found |= dict(
                zip(names, np.maximum.accumulate(_between(names, spreads)).tolist(), strict=True)
            )
        slower = [f"{_TIME}.{group}.slower.{loop}" for loop in LOOPS]
        found |= dict(zip(slower, _between(slower, spreads), strict=True))
    if (language := found.get(f"{_TIME}.language.form.new")) is not None:
        found.setdefault(f"{_TIME}.network.form.new", language)  # no published run trains a part
    return found


def _between(names: Sequence[str], spreads: Mapping[str, float]) -> list[float]:
    """Return the spread of each, in order; one that has none is between its neighbours."""
    own = {0: 0.0} | {i: spreads[name] for i, name in enumerate(names) if name in spreads}
    widths: list[float] = np.interp(range(len(names)), list(own), list(own.values())).tolist()
    return widths


def fitted_pair_spread(pairs: Sequence[tuple[float, float]]) -> float:
    """Return what constants leave of the difference of the errors of two strategies of one job.

    Args:
        pairs: Difference of the logarithms' errors, and its standard deviation by the constants.
    """
    errors, spreads = np.array(pairs).T
    even = np.ones(len(pairs))
    return fitting_spread(errors**2, even, spreads**2, even)


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


def _stays(name: str, groups: Collection[str]) -> bool:
    """Return whether a spread stays as it is, as no row of such groups has its class."""
    others = tuple(f"{_TIME}.{group}." for group in {"language", "network"} - set(groups))
    return name.endswith(_BY_PUBLISHED) or name.startswith(others)


def _widest(found: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: max(spread, before.get(name, 0.0)) for name, spread in found.items()}


def with_residuals(
    calibration: Calibration,
    errors: Sequence[LeftOutError],
    memory: Sequence[tuple[str, MemoryRow]],
    *,
    published: Sequence[UnseenError] = (),
    peaks: Sequence[LeftOutMemory] = (),
    command: str,
) -> Calibration:
    """Return a calibration with residuals that put 80 % of the rows of each class inside.

    Without published runs, no spread gets narrower: those that ship are wide enough for the
    published ones too.

    Args:
        calibration: That the rows were left out of.
        errors: Of step times.
        memory: Software and rows of memory; none leaves theirs as they were.
        published: Errors of published runs and recipes.
        peaks: Errors of their peaks of memory, and of these if their software were not known.
        command: That remakes them.
    """
    from wattree.validation.memory_coverage import fitted_memory_spreads, left_out_memory

    spreads, rows = dict(calibration.residuals.spreads), dict(calibration.residuals.rows)
    if errors:
        groups = {group_of(each.known.kind) for each in errors}
        stay = {name: spread for name, spread in spreads.items() if _stays(name, groups)}
        found = fitted_spreads([*errors, *published], stay)
        spreads |= found if published else _widest(found, spreads)
        pairs = strategy_pairs(errors)
        if len(pairs) >= _LEAST_ROWS:
            spreads[f"{_TIME}.pair"] = fitted_pair_spread(pairs)
        # Kinds of models without rows here keep their constants, and what is known of them.
        for group in groups:
            own = [each.facts for each in errors if group_of(each.known.kind) == group]
            rows |= measured_by(own).as_rows()
    if memory:
        found = fitted_memory_spreads([*left_out_memory(memory, calibration), *peaks])
        spreads |= found if peaks else _widest(found, spreads)
    return replace(calibration, residuals=Residuals(spreads=spreads, rows=rows, command=command))
