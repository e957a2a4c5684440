"""What the terminal says of a study, in full."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tests.design.synthetic import NASTY, axis, expansion_results, outcome, study
from wattree.design import Outcome, Results
from wattree.design.points import point_of
from wattree.report.design_text import show_answers


def printed(results: Results) -> str:
    """Return the answers as a terminal of 100 columns shows them."""
    console = Console(file=io.StringIO(), width=100, no_color=True)
    show_answers(results, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def test_answers_read_as_printed(golden: Any) -> None:
    """Best points, limits, worth, break-even and the next million."""
    golden.check("design_answers.txt", printed(expansion_results()))


def test_a_study_of_which_nothing_fits_says_so() -> None:
    """Every question gets the same answer, once for each objective."""
    bad = Outcome(point=point_of({"n": 1}), feasible=False, reason="no such node")
    text = printed(Results(study=study((axis("n", (1,)),)), outcomes=(bad,)))
    assert text.count("no point of the study is feasible") == 3


@pytest.mark.parametrize(
    ("prices", "said"),
    [((3, 2, 1), "#2 has the least capital, "), ((2, 3, 1), "it takes no less capital.")],
)
def test_a_small_difference_is_said_to_rank_nothing(prices: tuple[float, ...], said: str) -> None:
    """Two kinds whose times a scheduling anomaly could exchange, and which is cheaper."""
    axes = (axis("kind", ("one", "two", "three")),)
    outcomes = tuple(
        outcome({"kind": kind}, step_s=step_s, power_w=1, capital_usd=price)
        for kind, step_s, price in zip(axes[0].values, (1.0, 1.02, 2), prices, strict=True)
    )
    text = " ".join(printed(Results(study=study(axes), outcomes=outcomes)).split())

    assert f"least time to target: 1 other point (#2) within 4 %, too close to rank; {said}" in text
    assert "one against two: 2.0 % less time (too little to rank them): " in text
    assert "one against three: 50.0 % less time: " in text


def test_of_equals_the_next_objective_decides_and_is_named() -> None:
    """Regions differ in nothing but carbon and prices; rounding differs too."""
    axes = (axis("site", ("poland", "sweden")),)
    outcomes = tuple(
        outcome({"site": site}, step_s=step_s, power_w=power_w, capital_usd=1)
        for site, step_s, power_w in (("poland", 1.0, 4.0), ("sweden", 1.0 + 1e-15, 1.0))
    )
    results = Results(study=study(axes), outcomes=outcomes)
    text = " ".join(printed(results).split())

    assert results.best("time") == results.best("energy") == 1
    assert "sweden against poland: the same time, 75.0 % less energy and the same cost" in text
    assert "sweden: the same time as at poland, with 75.0 % less energy" in text


def test_names_of_files_are_no_markup() -> None:
    """`[red]` in a name is a name."""
    axes = (axis("kind", ("[red]plain", NASTY)),)
    outcomes = tuple(
        outcome({"kind": kind}, step_s=step_s, power_w=1, capital_usd=1)
        for kind, step_s in zip(axes[0].values, (1, 2), strict=True)
    )
    text = printed(Results(study=study(axes), outcomes=outcomes))
    assert "kind [red]plain" in text
