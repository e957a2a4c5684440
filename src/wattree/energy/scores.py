"""Errors of predictions of many runs, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.energy.least_squares import CONFIDENCE

#: Draws of the bootstrap, and its seed: the same runs give the same interval.
_DRAWS, _SEED = 2000, 0
_LEAST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Mean absolute relative error of some runs.

    Attributes:
        mean_abs_error: 0.05 is 5 %.
        lower, upper: Interval of 95 % by bootstrap over runs; None for fewer than three.
        bias: Mean error with its sign: above zero where predictions are too high.
    """

    mean_abs_error: float
    lower: float | None
    upper: float | None
    bias: float
    count: int


def score(errors: Sequence[float]) -> Score | None:
    """Return the score of relative errors; None if there are none."""
    if not errors:
        return None
    values = np.array(errors)
    lower = upper = None
    if len(values) >= _LEAST:
        chosen = np.random.default_rng(_SEED).integers(len(values), size=(_DRAWS, len(values)))
        means = np.abs(values)[chosen].mean(axis=1)
        outside = (1 - CONFIDENCE) / 2
        lower, upper = np.quantile(means, [outside, 1 - outside]).tolist()
    return Score(
        mean_abs_error=float(np.abs(values).mean()),
        lower=lower,
        upper=upper,
        bias=float(values.mean()),
        count=len(values),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodScores:
    """Errors of one energy model on the runs of one kind of node.

    Attributes:
        method, title: Its name, and its title in tables.
        knows: Measured inputs that it gets of the runs that it is scored on.
        total: Energy of all nodes; None where it cannot be used, and `reason` says why.
        by_model, by_nodes: The same, by model, and by number of nodes.
        by_stage: Energy of each stage that holds, or is said to hold, 1 % of its run or more; empty
            where none does.
        left_out: Model → score where runs of that model were left out of the fit.
        reason: Why it cannot be used, or the rows left out.
    """

    method: str
    title: str
    knows: str
    total: Score | None
    by_model: Mapping[str, Score] = field(default_factory=dict)
    by_nodes: Mapping[str, Score] = field(default_factory=dict)
    by_stage: Mapping[str, Score] = field(default_factory=dict)
    left_out: Mapping[str, Score] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Runs of one model on one number of nodes where another energy model was at least as good.

    Attributes:
        method: That did as well as the stage model or better.
        error, stage_model_error: Mean absolute errors of the two.
    """

    model: str
    nodes: int
    method: str
    error: float
    stage_model_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupComparison:
    """All energy models on the runs of one kind of node.

    Attributes:
        node, origin: Kind of the nodes; where the figures of the runs come from.
        fitted, scored: Numbers of runs.
        methods: In the order of the table; the stage model first.
        cells: Pairs of model and number of nodes among the scored runs.
        behind: Where the stage model is not ahead.
        warnings: Warnings of the fit of the stage model.
    """

    node: str
    origin: str
    fitted: int
    scored: int
    methods: tuple[MethodScores, ...]
    cells: int
    behind: tuple[Behind, ...]
    warnings: tuple[str, ...]
