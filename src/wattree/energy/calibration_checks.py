"""Checks for values that no valid calibration has; each fault names its key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from wattree.energy.calibration import (
    SCALING_WORK,
    EnergyCalibration,
    ModelTraits,
    StageConstant,
    WorkLine,
)

#: Figures beyond are of no machine, and their squares and products overflow.
_LEAST, _MOST = 1e-30, 1e30
#: Constants that are shares, and so not above one.
_SHARES = frozenset({"time.overlap"})
_ROUNDING = 1e-9


def _outside(value: float, *, least: float = 0.0, most: float = _MOST) -> str:
    """Return the fault of a figure; nothing if it is valid."""
    if math.isfinite(value) and least <= value <= most and (value == 0 or value >= _LEAST):
        return ""
    if math.isfinite(value) and 0 <= value <= most and least == 0:
        return f"found {value}, expected 0, or at least {_LEAST:.0e}"
    what = f"{least:g} or more" if least == 0 else f"at least {least:g}"
    top = "" if value < least else f", at most {most:g}"
    return f"found {value}, expected a finite number of {what}{top}"


def constant_faults(name: str, constant: StageConstant) -> Iterator[str]:
    """Yield invalid values of a constant, with their keys."""
    most = 1.0 if name in _SHARES else _MOST
    faulty = False
    for key in ("value", "lower", "upper"):
        value = getattr(constant, key)
        if value is not None and (fault := _outside(value, most=most)):
            faulty = True
            yield f"{key}: {fault}"
    if constant.runs < 0:
        yield f"runs: found {constant.runs}, expected 0 or more"
    ends = [each for each in (constant.lower, constant.value, constant.upper) if each is not None]
    if not faulty and any(b < a * (1 - _ROUNDING) for a, b in pairwise(ends)):
        yield (
            f"lower: found lower {constant.lower}, value {constant.value} and upper "
            f"{constant.upper}, expected them in this order"
        )


def covariance_faults(covariance: Sequence[Sequence[float]]) -> Iterator[str]:
    """Yield faults of a covariance matrix: a negative variance, or a correlation above one."""
    for row, values in enumerate(covariance):
        for column, value in enumerate(values):
            where = f"covariance[{row}][{column}]: found {value}"
            if not math.isfinite(value) or abs(value) > _MOST:
                yield f"{where}, expected a finite number"
                continue
            if row == column and value < 0:
                yield f"{where}, expected a variance of 0 or more"
            most = math.sqrt(max(values[row], 0.0) * max(covariance[column][column], 0.0))
            if row != column and not abs(value) <= most * (1 + 1e-6):
                yield f"{where}, expected at most {most:.3g}, the root of the two variances"
            elif row < column and not math.isclose(
                value, covariance[column][row], rel_tol=1e-6, abs_tol=1e-9 * most
            ):
                yield f"{where}, expected that of [{column}][{row}], {covariance[column][row]}"


def impossible_elsewhere(calibration: EnergyCalibration) -> Iterator[str]:
    """Yield invalid counts, scatter and models, with their keys."""
    for key, least, most in (("devices_per_node", 0, 10**4), ("most_nodes", 1, 10**7)):
        value = getattr(calibration, key)
        if not least <= value <= most:
            yield f"{key}: found {value}, expected {least} to {most}"
    for key in ("known", "unseen"):
        value = getattr(calibration.scatter, key)
        if value is not None and (fault := _outside(value)):
            yield f"scatter.{key}: {fault}"
    for name, traits in calibration.models.items():
        yield from (f"models.{name}.{line}" for line in _traits_faults(traits))


def _traits_faults(traits: ModelTraits) -> Iterator[str]:
    for key, most in (
        ("gradient_bytes", _MOST),
        ("least_samples", _MOST),
        ("most_samples", _MOST),
        ("overlap", 1.0),
    ):
        value = getattr(traits, key)
        if value is not None and (fault := _outside(value, most=most)):
            yield f"{key}: {fault}"
    if traits.least_samples > traits.most_samples:
        yield (
            f"least_samples: found {traits.least_samples}, expected at most most_samples, "
            f"{traits.most_samples}"
        )
    for key in ("time_ratio", "energy_ratio"):
        if fault := _outside(getattr(traits, key), least=_LEAST):
            yield f"{key}: {fault}"
    if traits.runs < 0:
        yield f"runs: found {traits.runs}, expected 0 or more"
    yield from _work_faults(traits.work)


def _work_faults(work: Mapping[str, WorkLine]) -> Iterator[str]:
    for name, line in work.items():
        if name not in SCALING_WORK:
            yield f"work.{name}: expected one of {', '.join(SCALING_WORK)}"
        for key in ("per_step", "per_sample"):
            if fault := _outside(getattr(line, key)):
                yield f"work.{name}.{key}: {fault}"
