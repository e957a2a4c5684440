"""All outcomes of a study, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.design.outcome import Outcome, WorkloadOutcome, outcome_json
from wattree.design.points import Value
from wattree.design.study import OBJECTIVE_TOTALS, Study
from wattree.shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Results(Shown):
    """The results of a study.

    Attributes:
        outcomes: Of the points that are finished, in the order of the study.
        points: Number of the study's points; None while a search has not determined it.
        out_of_time: The run ended because its minutes (`sampler.minutes`) were over.
    """

    study: Study
    outcomes: tuple[Outcome, ...]
    points: int | None = None
    out_of_time: bool = False

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def feasible(self) -> Flags:
        """Return which points meet all constraints, `(n,)`."""
        return np.array([outcome.feasible for outcome in self.outcomes], dtype=bool)

    def values(self, axis: str) -> tuple[Value, ...]:
        """Return the value of an axis at every point, quantities in SI units."""
        return tuple(outcome.point.values[axis] for outcome in self.outcomes)

    def total(self, name: str) -> Floats:
        """Return a total at every point, `(n,)`; nan where it is unknown or infeasible."""
        assert name in OBJECTIVE_TOTALS.values()
        return np.array(
            [
                outcome.totals.get(name, np.nan) if outcome.feasible else np.nan
                for outcome in self.outcomes
            ],
            dtype=np.float64,
        )

    def objective(self, name: str) -> Floats:
        """Return the objective of every point, `(n,)`; nan where it is unknown."""
        return self.total(OBJECTIVE_TOTALS[name])

    def of_workload(self, name: str) -> tuple[WorkloadOutcome | None, ...]:
        """Return the outcome of a workload at every point; None where the cluster is invalid."""
        return tuple(
            next((entry for entry in outcome.workloads if entry.workload == name), None)
            for outcome in self.outcomes
        )

    def figure(self, workload: str, name: str) -> Floats:
        """Return one figure of a workload, such as `step_time_s`, at every point; nan without."""
        found = [
            None if entry is None else getattr(entry, name) for entry in self.of_workload(workload)
        ]
        return np.array([np.nan if value is None else value for value in found], dtype=np.float64)

    def best(self, objective: str | None = None) -> int | None:
        """Return the index of the best feasible point, None without one: `ranked`'s first."""
        name = objective or self.study.objectives[0]
        return None if np.isnan(self.objective(name)).all() else int(self.ranked(name)[0])

    def ranked(self, objective: str) -> Integers:
        """Return the points by an objective, of equals by the study's others; unknown ones last."""
        others = [self.objective(name) for name in self.study.objectives]
        return ranked(self.objective(objective), others)

    def records(self) -> list[dict[str, Any]]:
        """Return the points: their values in SI units, totals, and the figures of each workload."""
        return [
            {
                "point": outcome.point.key,
                **outcome.point.values,
                "feasible": outcome.feasible,
                "reason": outcome.reason,
                **outcome.totals,
                **{each.workload: asdict(each) for each in outcome.workloads},
            }
            for outcome in self.outcomes
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return results_json(self)

    def where(self, indices: Sequence[int]) -> Results:
        """Return the results restricted to some points."""
        chosen = tuple(self.outcomes[index] for index in indices)
        return replace(self, outcomes=chosen)


def ranked(values: Floats, others: Sequence[Floats | None]) -> Integers:
    """Return points by rising values, of equals by rising others, of those the first; NaN last.

    Values are equal to nine digits: regions that differ in nothing but carbon round differently.
    """
    return np.lexsort([_rounded(each) for each in (*others[::-1], values) if each is not None])


def _rounded(values: Floats) -> Floats:
    size = np.abs(values)
    digit = 10.0 ** (np.floor(np.log10(np.where(size > 0, size, 1.0))) - 8.0)
    return np.asarray(np.round(values / digit) * digit)


def results_json(results: Results) -> dict[str, Any]:
    """Return plain dictionaries and lists, ready for JSON: the study, its axes and its points."""
    study, best = results.study, results.best()
    return {
        "study": study.name,
        "title": study.title,
        "notes": list(study.notes),
        "digest": study.digest,
        "objectives": list(study.objectives),
        "axes": [
            {
                "name": axis.name,
                "path": axis.path,
                "label": axis.label,
                "unit": axis.unit,
                "factor": axis.factor,
                "values": list(axis.values),
            }
            for axis in study.axes
        ],
        "points": results.points,
        "finished": len(results),
        "out_of_time": results.out_of_time,
        "best": None if best is None else results.outcomes[best].point.key,
        "outcomes": [outcome_json(outcome) for outcome in results.outcomes],
    }
