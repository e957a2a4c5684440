"""Weighted non-negative least squares that reports undetermined coefficients. Pure functions.

What is fitted are coefficients of physical terms, which are zero or more. Where columns of the
design say the same, one stands for all of them; the others are named and get no value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats

#: Of all intervals of this package: what a reader expects where nothing else is said.
CONFIDENCE = 0.95
#: Share of a column that must not be a combination of others: below it, rounding and clocks decide.
_NEW_SHARE = 1e-3
#: Part of a column that another explains before it is named as standing for it.
_PARTNER_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NonNegativeFit:
    """Coefficients of a non-negative least-squares fit.

    Attributes:
        values: `(k,)`.
        lower, upper: `(k,)`, the interval of `CONFIDENCE` for each; infinite upper ends where as
            many rows as coefficients leave no freedom.
        covariance: `(k, k)`; zero in rows of coefficients at their bound, and without freedom.
        scatter: Standard deviation of the weighted residuals.
        freedom: Rows less coefficients above zero.
    """

    values: Floats
    lower: Floats
    upper: Floats
    covariance: Floats
    scatter: float
    freedom: int


def non_negative_fit(
    design: Floats, observed: Floats, weights: Floats, *, spent: int = 0
) -> NonNegativeFit:
    """Return the coefficients `x >= 0` that minimize `|weights (design x - observed)|`.

    Intervals are Student's, from the covariance `s² (AᵀA)⁻¹` of the coefficients above zero (the
    active set); a coefficient at zero gets the upper end that it would have were it free too, and
    the intervals of the others reach to what they are with it there.

    Args:
        design: `(n, k)`, no column zero or a combination of others.
        observed: `(n,)`.
        weights: `(n,)`, one over the standard deviation of each row, up to a factor.
        spent: What else was fitted to the same rows.
    """
    from scipy.optimize import nnls

    weighted = design * weights[:, None]
    target = observed * weights
    lengths = np.linalg.norm(weighted, axis=0)
    scaled = weighted / lengths
    # Columns of length one: without it, joules per FLOP and watts would differ by 1e12.
    solution, residual = nnls(scaled, target)
    free = solution > 0
    freedom = len(target) - int(free.sum()) - spent
    scatter = float(residual / np.sqrt(freedom)) if freedom > 0 else 0.0
    covariance = np.zeros((len(lengths), len(lengths)))
    upper = np.full(len(lengths), np.inf)
    lower = np.zeros(len(lengths))
    if freedom > 0:
        inner = scatter**2 * np.linalg.pinv(scaled[:, free].T @ scaled[:, free])
        covariance[np.ix_(free, free)] = inner
        half_width = quantile(freedom) * np.sqrt(np.diag(covariance))
        lower = np.maximum(solution - half_width, 0.0)
        upper = solution + half_width
        inverse = np.linalg.pinv(scaled[:, free])
        for index in np.flatnonzero(~free).tolist():
            upper[index] = _upper_if_freed(
                scaled[:, [*np.flatnonzero(free).tolist(), index]], target, scatter, freedom
            )
            # What those above zero are where this one is at its upper end.
            other = solution[free] - inverse @ scaled[:, index] * upper[index]
            lower[free] = np.clip(other, 0.0, lower[free])
            upper[free] = np.maximum(other, upper[free])
    return NonNegativeFit(
        values=solution / lengths,
        lower=lower / lengths,
        upper=upper / lengths,
        covariance=covariance / np.outer(lengths, lengths),
        scatter=scatter,
        freedom=freedom,
    )


def _upper_if_freed(columns: Floats, target: Floats, scatter: float, freedom: int) -> float:
    """Return the upper end of the last coefficient, now zero, if it were added to the fit."""
    inverse = np.linalg.pinv(columns.T @ columns)
    estimate = float((inverse @ (columns.T @ target))[-1])
    error = scatter * float(np.sqrt(inverse[-1, -1]))
    return max(estimate + quantile(freedom) * error, 0.0)


def quantile(freedom: float) -> float:
    """Return the half-width of a `CONFIDENCE` interval in standard errors (Student's t)."""
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, max(freedom, 1)))


def dependent_columns(weighted: Floats, order: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Return columns that are linear combinations of others → the columns that they depend on.

    Columns are taken in an order; one that adds nothing to those before it is dependent.

    Args:
        weighted: `(n, k)`, rows as they are fitted.
        order: The columns to look at, those to keep first.
    """
    kept: list[int] = []
    dependent: dict[int, tuple[int, ...]] = {}
    for column in order:
        values = weighted[:, column]
        length = float(np.linalg.norm(values))
        if not kept:
            kept.append(column)
            continue
        basis = weighted[:, kept] / np.linalg.norm(weighted[:, kept], axis=0)
        shares, *_ = np.linalg.lstsq(basis, values / length, rcond=None)
        left = float(np.linalg.norm(values / length - basis @ shares))
        if left > _NEW_SHARE:
            kept.append(column)
            continue
        partners = [k for k, share in zip(kept, shares, strict=True) if abs(share) > _PARTNER_SHARE]
        dependent[column] = tuple(partners)
    return dependent
