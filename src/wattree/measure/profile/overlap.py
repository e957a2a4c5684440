"""Processor share that exchanges take from concurrent compute, and rates of sliced matmuls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wattree.cost import volume_factor
from wattree.measure.profile.journal import Journal, Times
from wattree.measure.profile.points import PointFamily


class Taken(NamedTuple):
    """Processor share that an exchange takes.

    Attributes:
        call_s: Each. [s]
        s_per_byte: For each byte that a rank sends. [s/B]
    """

    call_s: float
    s_per_byte: float
    points: int


def processors_taken(journal: Journal, ranks: int) -> Taken | None:
    """Return the processor share of gathers concurrent with matmuls; None if none were timed.

    Processor time of both at once less that of as many products: a line over the bytes that a rank
    sends, by least squares of relative errors.
    """
    from scipy.optimize import nnls

    sent_bytes, taken_s = [], []
    for size, found in _by_size(journal.measured(PointFamily.OVERLAP)).items():
        if {"product", "both"} <= found.keys():
            taken_s.append(found["both"].more_than_s(found["product"]))
            factor = volume_factor("all_gather", ranks)
            sent_bytes.append(float(factor) * size)
    sent, taken = np.array(sent_bytes), np.array(taken_s)
    is_lossy = taken > 0  # less than nothing was lost in what products differ by
    if not is_lossy.any():
        return None
    matrix = np.stack([1.0 / taken[is_lossy], sent[is_lossy] / taken[is_lossy]], axis=1)
    if is_lossy.sum() == 1:
        matrix[:, 0] = 0.0  # one size cannot tell two numbers
    (call_s, s_per_byte), _ = nnls(matrix, np.ones(int(is_lossy.sum())))
    return Taken(float(call_s), float(s_per_byte), int(is_lossy.sum()))


def slice_rate(journal: Journal) -> float | None:
    """Return the matmul rate with slices of a weight over that with the whole, at most 1.

    Geometric mean over layers and passes; None where none were timed.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for each in journal.measured(PointFamily.SLICES):
        which, _, how = each.point.name.partition(".")
        found.setdefault((which, each.point.inner), {})[how] = each.seconds
    ratios = [pair["whole"] / pair["sliced"] for pair in found.values() if len(pair) == 2]
    return min(float(np.exp(np.mean(np.log(ratios)))), 1.0) if ratios else None


def _by_size(times: Sequence[Times]) -> dict[int, dict[str, Times]]:
    found: dict[int, dict[str, Times]] = {}
    for each in times:
        found.setdefault(each.point.size_bytes, {})[each.point.name] = each
    return found
