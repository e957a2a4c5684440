"""Non-negative fits: against another solver, their intervals, and columns that say the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from wattree.energy.least_squares import dependent_columns, non_negative_fit


@given(seed=st.integers(0, 10_000), rows=st.integers(4, 20), columns=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_fit_is_the_bounded_least_squares_solution(seed: int, rows: int, columns: int) -> None:
    """An independent solver (trust region with bounds) finds no smaller residual."""
    random = np.random.default_rng(seed)
    scales = 10.0 ** random.uniform(-12, 3, columns)  # from joules per FLOP to watts
    design = random.uniform(0.1, 1.0, (rows, columns)) * scales
    observed = design @ (random.uniform(-1, 2, columns) / scales) + 5.0
    weights = 1.0 / np.abs(observed + 1e-3)

    found = non_negative_fit(design, observed, weights)
    other = lsq_linear(design * weights[:, None] / scales, observed * weights, bounds=(0, np.inf))

    ours = float(
        ((design @ found.values - observed) * weights)
        @ ((design @ found.values - observed) * weights)
    )
    assert (found.values >= 0).all()
    assert ours <= 2 * other.cost * (1 + 1e-6) + 1e-12


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Of intervals of 95 %, 400 draws miss some 5 %: by chance between 2 and 8 %."""
    random = np.random.default_rng(7)
    design = random.uniform(0.5, 2.0, (12, 2))
    truth = np.array([3.0, 1.0])
    misses = 0
    for _ in range(400):
        clean = design @ truth
        observed = clean * (1 + 0.02 * random.standard_normal(12))
        found = non_negative_fit(design, observed, 1.0 / observed)
        misses += int(((found.lower > truth) | (found.upper < truth)).sum())

    assert 0.02 <= misses / 800 <= 0.08


def test_a_coefficient_at_zero_has_an_upper_end() -> None:
    """What the data do not want may still be there, up to a point."""
    random = np.random.default_rng(1)
    design = random.uniform(0.5, 2.0, (10, 2))
    observed = design[:, 0] * 3.0 - design[:, 1] * 0.2 + 0.05 * random.standard_normal(10)
    found = non_negative_fit(design, observed, np.ones(10))

    assert found.values[1] == 0
    assert 0 <= found.upper[1] < 0.2


def test_an_interval_reaches_to_what_a_partner_at_zero_could_take() -> None:
    """Of two columns nearly alike a fit often gives all to one: the truth is in its interval."""
    random = np.random.default_rng(7)
    one = np.linspace(1.0, 2.0, 12)
    design = np.stack([one, one * (1 + 0.01 * random.standard_normal(12))], axis=1)
    misses = 0
    for _ in range(400):
        observed = design.sum(axis=1) * (1 + 0.02 * random.standard_normal(12))
        found = non_negative_fit(design, observed, 1.0 / observed)
        misses += int(((found.lower > 1) | (found.upper < 1)).sum())

    assert misses / 800 <= 0.08


def test_without_freedom_there_is_no_interval() -> None:
    """As many coefficients as rows leave nothing to judge them by."""
    found = non_negative_fit(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 3.0]), np.ones(2))

    assert found.values == pytest.approx([1.0, 2.0])
    assert np.isinf(found.upper).all()


def test_a_column_in_one_ratio_to_others_is_named_with_them() -> None:
    """Which of them the energy belongs to, no fit can say."""
    random = np.random.default_rng(3)
    first, second = random.uniform(1, 2, (2, 8))
    design = np.stack([first, second, 2 * second, first + second], axis=1)

    assert dependent_columns(design, range(4)) == {2: (1,), 3: (0, 1)}
