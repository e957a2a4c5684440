"""Ranked strategies that stand for others: one idea of its variants, and a Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from wattree.search.objective import objective_of
from wattree.search.pareto import undominated
from wattree.search.sure_fit import fits_surely

if TYPE_CHECKING:
    from wattree.search.plan_result import RankedStrategy

#: Variants of an idea are no farther behind it than this: less than predictions can tell apart.
NEAR = 0.01


def ideas(
    ranked: Sequence[RankedStrategy], objective: str
) -> tuple[tuple[RankedStrategy, ...], ...]:
    """Return strategies by idea: same degrees and recomputation, and less than 1 % apart.

    Those that surely fit are no variants of one that may not.

    Args:
        ranked: Best first.

    Returns:
        Each idea with its best strategy first, in the order of these.
    """
    found: list[list[RankedStrategy]] = []
    for entry in ranked:
        value = objective_of(entry.result, objective)
        for idea in found:
            best = objective_of(idea[0].result, objective)
            if _idea(idea[0]) == _idea(entry) and value <= best * (1.0 + NEAR):
                idea.append(entry)
                break
        else:
            found.append([entry])
    return tuple(map(tuple, found))


def of_best_ideas(
    ranked: Sequence[RankedStrategy], objective: str, top: int
) -> tuple[RankedStrategy, ...]:
    """Return the strategies of the best ideas, in the order of `ranked`, and of one sure to fit."""
    found = ideas(ranked, objective)
    sure = next((idea for idea in found if fits_surely(idea[0].result)), ())
    kept = {id(entry) for idea in (*found[:top], sure) for entry in idea}
    return tuple(entry for entry in ranked if id(entry) in kept)


def front(entries: Sequence[RankedStrategy], names: tuple[str, str]) -> tuple[RankedStrategy, ...]:
    """Return the strategies on the Pareto front of two objectives."""
    costs = np.array([[objective_of(e.result, n) for n in names] for e in entries])
    return tuple(entries[index] for index in undominated(costs).tolist())


def _idea(entry: RankedStrategy) -> tuple[object, ...]:
    options = entry.options
    return (
        tuple(options.degrees.values()),
        options.memory.recompute,
        options.phantoms,
        options.colocation,
        entry.power_limit_w,
        fits_surely(entry.result),
    )
