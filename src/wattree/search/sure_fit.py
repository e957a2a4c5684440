"""Which strategies surely fit in memory: with 80 % probability.

A margin of memory that stays free does not make a strategy sure: predicted peaks are spread more
widely (`accounts/memory_spread.py`). Plans rank by their objective, and name the best of these
where the best of all is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from wattree.accounts.interval import PROBABILITY
from wattree.accounts.memory_spread import memory_spread
from wattree.predict import Setting

if TYPE_CHECKING:
    from wattree.search.plan_result import RankedStrategy
    from wattree.search.screen import Constraints
    from wattree.trace import Result


def fits_surely(result: Result) -> bool:
    """Return whether a step fits with 80 % probability, or memory does not decide."""
    found = result.fit_probability
    return found is None or found >= PROBABILITY


def first_sure(ranked: Iterable[RankedStrategy]) -> RankedStrategy | None:
    """Return the first strategy that surely fits; None if there is none."""
    return next((entry for entry in ranked if fits_surely(entry.result)), None)


def surely(constraints: Constraints, setting: Setting) -> Constraints:
    """Return constraints with the margin of memory that leaves those which surely fit.

    By the spread of peaks that are tensors alone: what else a process holds hardly widens it.
    """
    margin = -math.expm1(-NormalDist().inv_cdf(PROBABILITY) * memory_spread(setting, 1.0))
    return replace(constraints, margin=max(constraints.margin, margin))
