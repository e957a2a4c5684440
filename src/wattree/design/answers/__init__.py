"""Answers to an architect's questions, computed from the points of a study alone.

    sweep        the points as columns
    pareto       which points nothing beats
    sensitivity  how much each axis matters
    elasticity   by how many per cent for one per cent; which resource is the bottleneck
    break_even   where one alternative overtakes another
    worth        what each value of an axis buys
    spend        where the next million is spent best
    budget       the best cluster for each budget
    summary      all of them, for reports

Everything is a pure function of arrays. A question that the points cannot answer gets a `NoAnswer`
with the reason, never a number.
"""

from wattree.design.answers.break_even import BreakEven, Crossing, break_even, crossings
from wattree.design.answers.budget import Budgets, best_within, budgets
from wattree.design.answers.elasticity import Elasticity, LimitingResource, bottleneck, elasticities
from wattree.design.answers.pareto import Front, pareto
from wattree.design.answers.reasons import KindReason
from wattree.design.answers.sensitivity import Effect, Tornado, main_effects, tornado
from wattree.design.answers.spend import CAPITAL, Spending, SpendingStep, spend
from wattree.design.answers.summary import StudySummary, ValueComparison, summarize
from wattree.design.answers.sweep import ALIKE, AxisColumn, NoAnswer, Sweep, is_ranked, sweep_of
from wattree.design.answers.worth import LevelWorth, Worth, worth
from wattree.design.points import Value

__all__ = [
    "ALIKE",
    "CAPITAL",
    "AxisColumn",
    "BreakEven",
    "Budgets",
    "Crossing",
    "Effect",
    "Elasticity",
    "Front",
    "KindReason",
    "LevelWorth",
    "LimitingResource",
    "NoAnswer",
    "Spending",
    "SpendingStep",
    "StudySummary",
    "Sweep",
    "Tornado",
    "Value",
    "ValueComparison",
    "Worth",
    "best_within",
    "bottleneck",
    "break_even",
    "budgets",
    "crossings",
    "elasticities",
    "is_ranked",
    "main_effects",
    "pareto",
    "spend",
    "summarize",
    "sweep_of",
    "tornado",
    "worth",
]
