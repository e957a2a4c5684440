"""The best cluster for each budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.design.answers.sweep import NoAnswer, Sweep
from wattree.search.pareto import undominated


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStep:
    """One cluster, the best for budgets from what it takes up to where the next begins.

    Attributes:
        spent: What it takes of the budget.
    """

    point: int
    spent: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The best cluster per budget, as steps of rising budget.

    Attributes:
        budget: Measure with a limit (`capital_usd`, `cost_usd`, `power_w`, `energy_j`, …).
        steps: Rising in `spent`, falling in `value`. Below the first nothing fits.
    """

    measure: str
    budget: str
    steps: tuple[BudgetStep, ...]


def budgets(sweep: Sweep, measure: str, budget: str) -> Budgets | NoAnswer:
    """Return which cluster is the best for each budget."""
    table = _table(sweep, measure, budget)
    if isinstance(table, NoAnswer):
        return table
    known = np.flatnonzero(np.isfinite(table).all(axis=1))
    points = known[undominated(table[known])]
    steps = [
        BudgetStep(point=int(point), spent=float(table[point, 0]), value=float(table[point, 1]))
        for point in points
    ]
    return Budgets(measure=measure, budget=budget, steps=tuple(steps))


def best_within(sweep: Sweep, measure: str, budget: str, limit: float) -> int | NoAnswer:
    """Return the best point that stays within a budget; of equals the cheapest."""
    found = budgets(sweep, measure, budget)
    if isinstance(found, NoAnswer):
        return found
    affordable = [step for step in found.steps if step.spent <= limit]
    if not affordable:
        least = found.steps[0].spent
        return NoAnswer(f"nothing that fits stays within {limit:g}; {budget} is {least:g} at least")
    return affordable[-1].point


def _table(sweep: Sweep, measure: str, budget: str) -> Floats | NoAnswer:
    spent, values = sweep.measure(budget), sweep.measure(measure)
    if isinstance(spent, NoAnswer):
        return spent
    if isinstance(values, NoAnswer):
        return values
    if measure == budget:
        return NoAnswer(f"{measure} cannot be both what is limited and what is to be small")
    table = np.stack([spent, values], axis=1)
    if not np.isfinite(table).all(axis=1).any():
        return NoAnswer(f"no feasible point has both {budget} and {measure}")
    return table
