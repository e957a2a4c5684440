"""Which strategies surely fit in memory, and when these come before faster ones.

A margin of memory that stays free does not make a strategy sure: predicted peaks are spread more
widely (`accounts/memory_spread.py`). A step that does not fit is worth nothing, so a strategy that
surely fits comes first unless another one is surely better, both with 80 % probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from wattree.accounts.interval import PROBABILITY
from wattree.accounts.memory_spread import memory_spread
from wattree.cost import Calibration
from wattree.predict import Setting
from wattree.search.probability import likely_better

if TYPE_CHECKING:
    from wattree.search.plan_result import RankedStrategy
    from wattree.search.screen import Constraints
    from wattree.trace import Result


def fits_surely(result: Result) -> bool:
    """Return whether a step fits with 80 % probability, or memory does not decide."""
    found = result.fit_probability
    return found is None or found >= PROBABILITY


def surely(constraints: Constraints, setting: Setting) -> Constraints:
    """Return constraints with the margin of memory that leaves those which surely fit.

    By the spread of peaks that are tensors alone: what else a process holds hardly widens it.
    """
    margin = -math.expm1(-NormalDist().inv_cdf(PROBABILITY) * memory_spread(setting, 1.0))
    return replace(constraints, margin=max(constraints.margin, margin))


def sure_first(
    ranked: Sequence[RankedStrategy], objective: str, *, calibration: Calibration
) -> tuple[RankedStrategy, ...]:
    """Return strategies with the first that surely fits before all others.

    Unless what is best by the objective is better than that one with 80 % probability.

    Args:
        ranked: Best first.
        calibration: Under which they are predicted.
    """
    sure = next((entry for entry in ranked if fits_surely(entry.result)), None)
    if sure is None or sure is ranked[0]:
        return tuple(ranked)
    best = ranked[0].result
    if likely_better(best, sure.result, objective, calibration=calibration) >= PROBABILITY:
        return tuple(ranked)
    return (sure, *(entry for entry in ranked if entry is not sure))
