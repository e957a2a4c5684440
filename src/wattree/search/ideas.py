"""Ranked strategies that differ in details alone: one idea and its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wattree.search.objective import objective_of

if TYPE_CHECKING:
    from wattree.search.plan_result import RankedStrategy

#: Variants of an idea are no farther behind it than this: less than predictions can tell apart.
_NEAR = 0.01


def ideas(
    ranked: Sequence[RankedStrategy], objective: str
) -> tuple[tuple[RankedStrategy, ...], ...]:
    """Return strategies by idea: same degrees and recomputation, and less than 1 % apart.

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
            if _idea(idea[0]) == _idea(entry) and value <= best * (1.0 + _NEAR):
                idea.append(entry)
                break
        else:
            found.append([entry])
    return tuple(map(tuple, found))


def _idea(entry: RankedStrategy) -> tuple[object, ...]:
    options = entry.options
    return (
        tuple(options.degrees.values()),
        options.memory.recompute,
        options.phantoms,
        options.colocation,
        entry.power_limit_w,
    )
