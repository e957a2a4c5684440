"""Probability that one strategy of a job is better than another.

Both run on the same devices with the same software, so most of what is unsure of either is the same
of both. What differs is what the step rests on: of each class of constants the difference of the
shares counts, and what is left where rows of two strategies of one job are compared.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from wattree.accounts.interval import LEFT_OPEN, SLOWER
from wattree.cost import Calibration
from wattree.cost.observations import RESIDUAL
from wattree.search.objective import objective_of
from wattree.trace import Result

#: Spread of the ratio of two strategies' step times where the calibration states none.
_PAIR_SPREAD = 0.05


def surely_below(calibration: Calibration, probability: float) -> float:
    """Return the ratio of two step times of one job from which on the faster is surely better.

    With equal shares of all constants (see `probability_below`); where they differ, it is less.
    """
    return math.exp(-NormalDist().inv_cdf(probability) * _pair_spread(calibration))


def likely_better(
    ours: Result, theirs: Result, objective: str, *, calibration: Calibration
) -> float:
    """Return the probability that one strategy of a job is better than another.

    Args:
        calibration: Under which both are predicted.
    """
    return probability_below(
        ours,
        theirs,
        objective_of(ours, objective),
        objective_of(theirs, objective),
        pair_spread=_pair_spread(calibration),
    )


def _pair_spread(calibration: Calibration) -> float:
    return calibration.residuals.spreads.get("step_time_s.pair", _PAIR_SPREAD)


def probability_below(
    ours: Result, theirs: Result, mine: float, other: float, *, pair_spread: float
) -> float:
    """Return the probability that a figure of one strategy is below that of another.

    `P = Phi(ln(other / mine) / s)`, `s^2 = sum((a_c - b_c)^2 s_c^2) + s_pair^2` with the shares
    `a_c`, `b_c` of the step times that constants of class `c` set, and their spread `s_c`. Energy,
    money and carbon are taken to be as unsure as time.

    Args:
        mine, other: Their figures, both positive.
        pair_spread: What constants leave of the ratio of two step times of one job.
    """
    square = pair_spread**2
    first, second = ours.interval_parts, theirs.interval_parts
    for name in (first.keys() | second.keys()) - {RESIDUAL, LEFT_OPEN, SLOWER}:
        parts = [each[name] for each in (first, second) if name in each]
        shares = [each[name].share if name in each else 0.0 for each in (first, second)]
        square += ((shares[0] - shares[1]) * parts[0].spread) ** 2
    if mine <= 0.0 or other <= 0.0 or square <= 0.0:
        return float(mine < other) if mine != other else 0.5
    return 0.5 * (1.0 + math.erf(math.log(other / mine) / math.sqrt(2.0 * square)))
