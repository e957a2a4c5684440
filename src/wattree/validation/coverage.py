"""Residual spreads by class of evidence, and coverage of prediction intervals.

A spread is the one with which 80 % of the rows of its class lie inside their intervals, given what
the constants' own spreads make of these (conformal: no shape of the errors is assumed but at that
quantile). Classes are fitted in turn until they stand still.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from wattree.accounts.interval import DEVIATIONS, PROBABILITY
from wattree.accounts.known import GENERIC, LEVELS, SOFTWARE, EvidenceClass, group_of, level_name
from wattree.arrays import Floats
from wattree.cost import Calibration, Residuals
from wattree.validation.left_out import PUBLISHED, RECIPES, LeftOutError, UnseenError, measured_by
from wattree.validation.memory_fit import MemoryRow
from wattree.validation.rows import choice_of

if TYPE_CHECKING:
    from wattree.validation.memory_coverage import LeftOutMemory

_ROUNDS, _HALVINGS, _MOST = 12, 40, 2.0
#: Classes with fewer rows take the spread of the class that they are nearest to.
_LEAST_ROWS = 8
_TIME = "step_time_s"
#: Classes that no row is of.
_BY_PUBLISHED = (".form.new", f".software.{GENERIC}")
#: Those of models with experts, of which rows are few, and of three models.
_BY_RECIPES = (".kind.experts", ".experts.model.new")
#: Hold-outs of runs that no fit has → the classes that they tell of.
_UNSEEN = {PUBLISHED: _BY_PUBLISHED, RECIPES: _BY_RECIPES}


def deviation_of(each: UnseenError, spreads: Mapping[str, float]) -> float:
    """Return the standard deviation of a left-out row's prediction under residual `spreads`."""
    group = group_of(each.known.kind)
    own = [
        part.share
        * math.hypot(part.spread, spreads.get(level_name(group, each.levels.get(name)), 0.0))
        for name, part in each.parts.items()
    ]
    return math.hypot(*own, each.known.residual(spreads))


def fitted_spreads(
    errors: Sequence[UnseenError], known: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return class of evidence → residual spread of step times.

    Args:
        errors: Of predictions.
        known: Spreads of classes of which there are no errors.
    """
    members = _members(errors)
    weights = _weights(errors)
    spreads = dict(known or {}) | dict.fromkeys(members, 0.05)
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


def _members(errors: Sequence[UnseenError]) -> dict[str, list[int]]:
    """Return class of evidence → the rows that its spread is fitted to.

    Jobs like measured ones say what is left of each kind of model; the others, what is added by the
    first of what is not measured: form, software, device, size, model. Published runs tell only of
    the first two, of which rows cannot (these are of few forms, and of known software), and recipes
    of models with experts.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for i, each in enumerate(errors):
        name = _class_of(each.known)
        if each.hold_out not in _UNSEEN or name.endswith(_UNSEEN[each.hold_out]):
            found[name].append(i)
    return {name: rows for name, rows in found.items() if len(rows) >= _LEAST_ROWS}


def recipes_tell_of(known: EvidenceClass) -> bool:
    """Return whether published recipes are among what the spread of a class is fitted to."""
    return _class_of(known).endswith(_BY_RECIPES)


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
    """Return weights that give all hold-outs the same total weight, and each publisher."""

    def key(each: UnseenError) -> tuple[str, str]:
        return (each.hold_out, each.group if each.hold_out == PUBLISHED else "")

    counts = Counter(map(key, errors))
    return np.array([1.0 / counts[key(each)] for each in errors])


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
    """Return the spreads, none of what is known less below that of what is known more.

    A level without rows lies between its neighbours; the nearest adds nothing.
    """
    found = dict(spreads)
    for group in ("language", "network"):
        levels = [level_name(group, level) for level in LEVELS]
        software = [f"{_TIME}.{group}.software.{known}" for known in SOFTWARE]
        for names in (levels, software):
            own = {0: 0.0} | {i: spreads[name] for i, name in enumerate(names) if name in spreads}
            widths = np.interp(range(len(names)), list(own), list(own.values()))
            found |= dict(zip(names, np.maximum.accumulate(widths).tolist(), strict=True))
    if (language := found.get(f"{_TIME}.language.form.new")) is not None:
        found.setdefault(f"{_TIME}.network.form.new", language)  # no published run trains a part
    return found


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


def _untold(name: str, groups: Collection[str]) -> bool:
    """Return whether rows of such groups say nothing of a spread, which then stays as it is."""
    others = tuple(f"{_TIME}.{group}." for group in {"language", "network"} - set(groups))
    return name.endswith(_BY_PUBLISHED) or name.startswith(others)


def with_residuals(
    calibration: Calibration,
    errors: Sequence[LeftOutError],
    memory: Sequence[tuple[str, MemoryRow]],
    *,
    published: Sequence[UnseenError] = (),
    unnamed: Sequence[LeftOutMemory] = (),
    command: str,
) -> Calibration:
    """Return a calibration with residuals that put 80 % of the rows of each class inside.

    Args:
        calibration: That the rows were left out of.
        errors: Of step times.
        memory: Software and rows of memory; none leaves theirs as they were.
        published: Errors of published runs and recipes.
        unnamed: Errors of their peaks of memory, if their software were not known.
        command: That remakes them.
    """
    from wattree.validation.memory_coverage import fitted_memory_spreads, left_out_memory

    spreads, rows = dict(calibration.residuals.spreads), dict(calibration.residuals.rows)
    if errors:
        groups = {group_of(each.known.kind) for each in errors}
        stay = {name: spread for name, spread in spreads.items() if _untold(name, groups)}
        spreads |= fitted_spreads([*errors, *published], stay)
        pairs = strategy_pairs(errors)
        if len(pairs) >= _LEAST_ROWS:
            spreads[f"{_TIME}.pair"] = fitted_pair_spread(pairs)
        # Kinds of models without rows here keep their constants, and what is known of them.
        for group in groups:
            own = [each.facts for each in errors if group_of(each.known.kind) == group]
            rows |= measured_by(own).as_rows()
    if memory:
        off = left_out_memory([row for _, row in memory], calibration)
        spreads |= fitted_memory_spreads([*off, *unnamed])
        rows["memory_software"] = tuple(sorted({software for software, _ in memory}))
    return replace(calibration, residuals=Residuals(spreads=spreads, rows=rows, command=command))
