"""What a sum of money buys, and why a kind of hardware wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.design.grids import grid
from tests.design.synthetic import axis, outcome, study
from wattree.design import Results
from wattree.design.answers import (
    NoAnswer,
    Sweep,
    best_within,
    spend,
    summarize,
    sweep_of,
    worth,
)
from wattree.design.answers.reasons import kind_reasons
from wattree.design.study import OBJECTIVE_TOTALS
from wattree.report.design.words import SHORT, kind_sentence


def test_worth_compares_with_the_lowest_value_that_fits() -> None:
    """The change of every measure is that of the point that is best in one of them."""
    sweep = grid(
        {"memory": [0, 1, 2], "n": [1, 2]},
        feasible=lambda p: p.memory > 0,
        time_s=lambda p: 1 / (p.memory * p.n),
        cost_usd=lambda p: (1 + p.memory) * p.n,
    )
    found = worth(sweep, "memory", "time_s")
    assert not isinstance(found, NoAnswer)
    assert found.reference == 1
    assert [level.point for level in found.levels] == [None, 3, 5]
    assert found.levels[2].change == pytest.approx({"time_s": -0.5, "cost_usd": 0.5})
    assert [level.feasible for level in found.levels] == [0, 2, 2]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30))
def test_budgets_are_the_best_of_all_that_is_affordable(rows: list[tuple[int, int]]) -> None:
    """Against looking through all points for every budget."""
    table = np.array(rows, dtype=float)
    sweep = Sweep(
        axes=(),
        measures={"capital_usd": table[:, 0], "time_s": table[:, 1]},
        feasible=np.ones(len(rows), dtype=bool),
    )
    for limit in range(11):
        affordable = table[table[:, 0] <= limit]
        found = best_within(sweep, "time_s", "capital_usd", limit)
        if len(affordable):
            assert not isinstance(found, NoAnswer)
            assert table[found, 1] == affordable[:, 1].min()
            assert table[found, 0] <= limit
        else:
            assert isinstance(found, NoAnswer)


def test_spending_ranks_steps_by_what_a_sum_gains() -> None:
    """What the sum pays for comes first; what it does not is compared by its rate."""
    sweep = grid(
        {"link": [1, 2], "memory": [1, 2], "colour": ["red", "blue"]},
        time_s=lambda p: (1.0 if p.memory == 1 else 0.9) / p.link,
        capital_usd=lambda p: 1e6 + 2e6 * (p.link - 1) + 1e5 * (p.memory - 1),
    )
    found = spend(sweep, "time_s", sum_usd=1e6)
    assert not isinstance(found, NoAnswer)
    assert [step.axis for step in found.steps] == ["memory", "link"]
    memory, link = found.steps
    assert memory.gain_per_sum == pytest.approx(0.1)
    assert link.gain_per_sum == pytest.approx(1 - 0.5**0.5)
    assert (memory.affordable, link.affordable) == (True, False)
    assert found.gain == pytest.approx(0.1)
    assert found.without == {"colour": "no other value of it is better"}


def test_what_gains_and_costs_nothing_is_named_apart() -> None:
    """Dividing by a price of nothing would rank it by accident."""
    sweep = grid({"a": [1, 2]}, time_s=lambda p: 1 / p.a, capital_usd=lambda _: 5)
    found = spend(sweep, "time_s", base=0)
    assert not isinstance(found, NoAnswer)
    assert found.steps == ()
    assert [(step.axis, step.value, step.gain) for step in found.free] == [("a", 2, 0.5)]


def test_why_a_kind_wins_says_where_the_time_of_the_others_goes() -> None:
    """To the target, over all workloads; numbers are no kinds."""
    values = [
        {"chip": chip, "memory": memory} for chip in ("fast", "slow", "slower") for memory in (1, 2)
    ]
    steps = dict(zip(("fast", "slow", "slower"), (1.0, 2.0, 4.0), strict=True))
    outcomes = [
        outcome(
            each, step_s=steps[str(each["chip"])] / float(each["memory"]), power_w=1, capital_usd=1
        )
        for each in values
    ]
    axes = [axis("chip", list(steps)), axis("memory", (1, 2))]
    results = Results(study=study(axes), outcomes=tuple(outcomes), points=len(outcomes))

    found = kind_reasons(results, sweep_of(results), "time_s")

    assert [(each.winner, each.other, each.share) for each in found] == [
        ("fast", "slow", 0.5),
        ("fast", "slower", 0.75),
    ]
    assert found[0].saved == pytest.approx({"compute": 350, "exposed communication": 150})


@pytest.mark.parametrize(("measure", "winner"), [("energy_j", "lean"), ("capital_usd", "cheap")])
def test_why_a_kind_wins_is_about_the_winner_by_the_first_objective(
    measure: str, winner: str
) -> None:
    """Of time alone it explained another point than the best choice, or nothing."""
    figures = {"fast": (1.0, 9.0, 3.0), "lean": (2.0, 1.0, 2.0), "cheap": (4.0, 5.0, 1.0)}
    outcomes = tuple(
        outcome({"chip": chip}, step_s=step_s, power_w=power_w, capital_usd=price)
        for chip, (step_s, power_w, price) in figures.items()
    )
    name = next(name for name, total in OBJECTIVE_TOTALS.items() if total == measure)
    asked = replace(study([axis("chip", list(figures))]), objectives=(name, "time"))
    summary = summarize(Results(study=asked, outcomes=outcomes, points=3))

    assert {each.winner for each in summary.reasons} == {winner}
    words = [kind_sentence(summary.sweep, each) for each in summary.reasons]
    assert all(f"less {SHORT[measure]}" in each.partition(",")[0] for each in words)
    assert all(bool(each.saved) is (measure == "energy_j") for each in summary.reasons)
