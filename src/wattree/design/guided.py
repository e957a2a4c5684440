"""Points proposed by a surrogate model: the only file that imports optuna.

Points come in batches. A batch follows from the seed and from the outcomes of all batches before
it, in the order of the study, so that a run that was interrupted, or shared, or made elsewhere,
tries the same points.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from wattree.design.outcome import Outcome
from wattree.design.points import DesignPoint, Value, point_of
from wattree.design.samplers import space_size
from wattree.design.study import OBJECTIVE_TOTALS, Axis, Study
from wattree.errors import JobError, check_packages

#: What an infeasible point has of every objective; searches rank, so only its size matters.
_WORST = 1e30
#: Proposals of one batch, over its size, before what is left of the space is taken to be empty.
_MOST_PROPOSALS = 20


class Guide:
    """Chooses the points of one study by a tree-structured Parzen estimator (Bergstra et al. 2011).

    Attributes:
        study: The study.
    """

    def __init__(self, study: Study) -> None:
        """Prepare a search.

        Raises:
            MissingExtraError: Optuna is not installed.
        """
        check_packages("optuna", needed_for="sampler.kind: guided", extra="optimize")
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = study
        self._optuna = optuna
        with warnings.catch_warnings():
            # The joint model and the liar are called experimental, and have been for years.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=study.sampler.seed,
                multivariate=True,
                constant_liar=True,
                n_startup_trials=min(study.sampler.batch, max((study.sampler.points or 1) // 4, 1)),
            )
        self._search = optuna.create_study(
            directions=["minimize"] * len(study.objectives), sampler=sampler
        )
        self._spaces = {axis.name: _distribution(axis, optuna) for axis in study.axes}
        self._known: dict[str, DesignPoint] = {}  # all points so far, in their order
        self._waiting: list[tuple[Any, str]] = []  # trials of the batch that is out

    def following(self, outcomes: Sequence[Outcome]) -> list[DesignPoint]:
        """Return the batch that follows these outcomes, which are in order; empty at the end.

        Raises:
            JobError: A feasible point has no figure of an objective.
        """
        by_key = {outcome.point.key: outcome for outcome in outcomes}
        while True:
            if not all(key in by_key for _, key in self._waiting):
                return []
            for trial, key in self._waiting:
                self._search.tell(trial, self._values(by_key[key]))
            batch = self._batch(by_key)
            self._known |= {point.key: point for point in batch}
            # A run that goes on proposes again what is known already.
            if not batch or any(point.key not in by_key for point in batch):
                return batch

    def _batch(self, by_key: Mapping[str, Outcome]) -> list[DesignPoint]:
        """Return new points, after reporting the known results of other proposed points."""
        sampler = self.study.sampler
        left = min(
            float(sampler.points or 0) - len(self._known),
            space_size(self.study.axes) - len(self._known),
        )
        self._waiting, batch = [], dict[str, DesignPoint]()
        for _ in range(_MOST_PROPOSALS * sampler.batch):
            if len(batch) >= min(left, sampler.batch):
                break
            trial = self._search.ask(self._spaces)
            point = point_of({a.name: _value(a, trial.params[a.name]) for a in self.study.axes})
            if point.key in self._known:
                self._search.tell(trial, self._values(by_key[point.key]))
                continue
            batch[point.key] = point
            self._waiting.append((trial, point.key))
        return list(batch.values())

    def _values(self, outcome: Outcome) -> list[float]:
        """Return what a point has of the objectives."""
        names = self.study.objectives
        if not outcome.feasible:
            return [_WORST] * len(names)
        for name in names:
            if OBJECTIVE_TOTALS[name] not in outcome.totals:
                raise JobError(
                    self.study.source,
                    [
                        f"objectives: found {name}, of which nothing is known; give the site a "
                        "carbon intensity, nodes or energy a price, or leave it out"
                    ],
                )
        return [outcome.totals[OBJECTIVE_TOTALS[name]] for name in names]


def _distribution(axis: Axis, optuna: Any) -> Any:
    """Return the space of an axis: of numbers in order, their places in the list."""
    kinds = optuna.distributions
    if axis.sampled is not None:
        first, last = axis.values
        if axis.whole:
            return kinds.IntDistribution(first, last, log=axis.sampled == "log")
        return kinds.FloatDistribution(first, last, log=axis.sampled == "log")
    in_order = not any(isinstance(value, str | bool) for value in axis.values)
    if in_order and list(axis.values) == sorted(axis.values):
        return kinds.IntDistribution(0, len(axis.values) - 1)
    return kinds.CategoricalDistribution(list(range(len(axis.values))))


def _value(axis: Axis, found: float) -> Value:
    if axis.sampled is None:
        return axis.values[int(found)]
    return int(found) if axis.whole else float(f"{found:.12g}")
