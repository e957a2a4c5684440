"""Formulas of links: arithmetic, and nothing else."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.design.formula import formula_of
from wattree.errors import UnitError

NUMBERS = st.floats(0.1, 1e6)


@given(a=NUMBERS, b=NUMBERS)
def test_a_formula_is_worth_what_its_arithmetic_is(a: float, b: float) -> None:
    """The evaluator is its own; Python's own arithmetic is the reference."""
    formula = formula_of("2*a + b/3 - min(a, b)**2 + sqrt(a) - -1", frozenset({"a", "b"}))
    expected = 2 * a + b / 3 - min(a, b) ** 2 + math.sqrt(a) + 1
    assert formula.value({"a": a, "b": b}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.real",
        "a[0]",
        "lambda: 1",
        "[a for a in (1, 2)]",
        "a if a else 1",
        "open('x')",
        "'text'",
        "a and 1",
        "f(a)",
        "min(a, key=1)",
        "a := 1",
        "(a, 1)",
        "True",
        "1 +",
        "",
        "a" * 600,
        "+".join(["a"] * 201),
        "(" * 300,
    ],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    """A study file comes from anybody; it must not run anything."""
    with pytest.raises(UnitError):
        formula_of(text, frozenset({"a"}))


def test_an_unknown_name_is_told_with_the_nearest_one() -> None:
    """Slips are the usual fault."""
    with pytest.raises(UnitError, match="did you mean 'bandwidth'"):
        formula_of("2 * bandwith", frozenset({"bandwidth", "memory"}))


@pytest.mark.parametrize(
    "text", ["1 / a", "a ** -1", "10.0 ** (10 ** 50)", "sqrt(a - 1)", "log2(a)", "9 ** 9 ** 9 ** 9"]
)
def test_a_formula_without_a_value_says_at_which_numbers(text: str) -> None:
    """Divisions by zero and towers of powers end with a message, at once."""
    formula = formula_of(text, frozenset({"a"}))
    with pytest.raises(UnitError, match=r"has no value|is "):
        formula.value({"a": 0.0})


def test_a_formula_survives_the_way_to_a_worker() -> None:
    """Studies are sent to other processes."""
    formula = formula_of("2 * a", frozenset({"a"}))
    assert pickle.loads(pickle.dumps(formula)).value({"a": 3.0}) == 6.0
