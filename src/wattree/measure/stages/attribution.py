"""Attributes the energy that a meter read to stages; no result if the meter is too slow.

A meter much faster than the stages is integrated over their times. One that is slower sees
mixtures: energy between two of its updates is E_k = sum over stages of P_s * t_s,k, and where the
mixture changes enough from update to update, least squares find the P_s.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.measure.track import Track
from wattree.trace import STAGES

#: Updates of a meter within a stage's time from which on it is integrated: each end is off by up
#: to one.
_FAST = 10.0
#: Updates for each stage below which least squares are not tried.
_LEAST = 10
#: Largest standard error of a stage's energy that is still reported, as a share of the whole.
_WORST_ERROR = 0.1
#: Largest condition of the stages' shares of time: it multiplies the errors of readings, of which
#: 0.5 % would be `_WORST_ERROR`. Residuals do not show it: a reading that never changes has none.
_MOST_CONDITION = 20.0

Times = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Split:
    """Energy by stage, or None; with the method, or the reason. [J]"""

    energy_j: Mapping[str, float] | None
    method: str


def stage_energies(track: Track, waits: Mapping[str, Times], start_s: float, end_s: float) -> Split:
    """Return the energy of each stage between two times; the sum is the total.

    Args:
        waits: Stage → ascending starts and ends of the times at which the step waited for it;
            all other time is `computing`. [s]
        start_s: Start of the time. [s]
        end_s: Its end. [s]
    """
    total_j = track.between(start_s, end_s)
    busy = {stage: _clipped(times, start_s, end_s) for stage, times in waits.items()}
    busy = {stage: times for stage, times in busy.items() if len(times[0])}
    if not busy:
        return Split(dict.fromkeys(STAGES, 0.0) | {"computing": total_j}, "nothing was waited for")
    period_s = track.period_s
    if period_s is None:
        return Split(None, "the meter was not seen to change")
    if _shortest_s(busy, start_s, end_s) >= _FAST * period_s:
        return Split(_integrated(track, busy, total_j), "integrated over the times of the stages")
    return _regressed(track, busy, start_s, end_s, total_j)


def _clipped(times: Times, start_s: float, end_s: float) -> tuple[Floats, ...]:
    starts = np.clip(np.asarray(array("d", times[0])), start_s, end_s)
    ends = np.clip(np.asarray(array("d", times[1])), start_s, end_s)
    order = np.argsort(starts, kind="stable")
    some = (ends - starts)[order] > 0
    return starts[order][some], ends[order][some]


def _shortest_s(busy: Mapping[str, tuple[Floats, ...]], start_s: float, end_s: float) -> float:
    """Return the median length of the shortest kind of time, computing among them. [s]"""
    edges = np.sort(np.concatenate([np.concatenate(times) for times in busy.values()]))
    waited_s = sum(float(np.sum(ends - starts)) for starts, ends in busy.values())
    between_s = (end_s - start_s - waited_s) / (len(edges) / 2 + 1)
    return min(between_s, *(float(np.median(ends - starts)) for starts, ends in busy.values()))


def _integrated(
    track: Track, busy: Mapping[str, tuple[Floats, ...]], total_j: float
) -> dict[str, float]:
    found = dict.fromkeys(STAGES, 0.0)
    for stage, (starts, ends) in busy.items():
        found[stage] = sum(
            track.between(float(a), float(b)) for a, b in zip(starts, ends, strict=True)
        )
    found["computing"] = max(0.0, total_j - sum(found.values()))
    return _scaled(found, total_j)


def _regressed(
    track: Track,
    busy: Mapping[str, tuple[Floats, ...]],
    start_s: float,
    end_s: float,
    total_j: float,
) -> Split:
    at_s, watts = track.series(start_s, end_s, most=20_000)
    edges = np.concatenate([[start_s], start_s + np.asarray(at_s)])
    lengths = np.diff(edges)
    stages = [*busy, "computing"]
    times = np.zeros((len(lengths), len(stages)))
    for column, stage in enumerate(busy):
        times[:, column] = np.diff(_elapsed(busy[stage], edges))
    times[:, -1] = np.maximum(0.0, lengths - times.sum(axis=1))
    if len(lengths) < _LEAST * len(stages):
        return Split(
            None,
            f"{len(lengths)} updates of the meter are too few to tell {len(stages)} stages apart, "
            f"which take at least {_LEAST * len(stages)}",
        )
    size = np.linalg.norm(times, axis=0)
    condition = float(np.linalg.cond(times / size)) if np.all(size > 0) else np.inf
    if condition > _MOST_CONDITION:
        return Split(
            None,
            "each stage takes the same share of every update of the meter, as where its period is "
            "about that of a step, so that their energies cannot be separated",
        )
    energies = np.asarray(watts) * lengths
    power, error_w = _least_squares(times, energies)
    seconds = times.sum(axis=0)
    worst = float(np.max(error_w * seconds)) / total_j if total_j > 0 else np.inf
    if not worst <= _WORST_ERROR:
        return Split(
            None,
            "each stage takes much the same share of every update of the meter, so that their "
            f"energies cannot be separated (standard error {min(worst, 99.99):.0%} of the energy, "
            f"at most {_WORST_ERROR:.0%} is reported)",
        )
    found = dict.fromkeys(STAGES, 0.0) | dict(zip(stages, (power * seconds).tolist(), strict=True))
    return Split(
        _scaled(found, total_j),
        f"least squares over {len(lengths)} updates of the meter, standard error {worst:.0%} of "
        "the energy",
    )


def _elapsed(times: tuple[Floats, ...], edges: Floats) -> Floats:
    """Return the accumulated wait for a stage at each edge. [s]"""
    starts, ends = times
    knots = np.stack([starts, ends], axis=1).ravel()
    knots = np.maximum.accumulate(knots)
    passed = np.concatenate([[0.0], np.cumsum(np.maximum(knots[1::2] - knots[::2], 0.0))])
    heights = np.stack([passed[:-1], passed[1:]], axis=1).ravel()
    result: Floats = np.interp(edges, knots, heights)
    return result


def _least_squares(times: Floats, energies: Floats) -> tuple[Floats, Floats]:
    """Return powers of at least 0 and their standard errors. [W]"""
    from scipy.optimize import nnls

    power, _ = nnls(times, energies)
    freedom = max(len(energies) - times.shape[1], 1)
    variance = float(np.sum((energies - times @ power) ** 2)) / freedom
    return power, np.sqrt(variance * np.diag(np.linalg.pinv(times.T @ times)))


def _scaled(found: dict[str, float], total_j: float) -> dict[str, float]:
    """Return energies scaled to the total."""
    reported_j = sum(found.values())
    if reported_j <= 0:
        return found | {"computing": total_j}
    return {stage: energy_j * (total_j / reported_j) for stage, energy_j in found.items()}
