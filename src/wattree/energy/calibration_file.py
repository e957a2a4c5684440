"""Files of energy calibrations: YAML with the keys of the types in `calibration.py`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattree.energy.calibration import (
    CONSTANTS,
    SCALING_WORK,
    EnergyCalibration,
    ModelTraits,
    StageConstant,
    WorkLine,
)
from wattree.errors import JobError, RunError
from wattree.files import read_yaml, write_atomic
from wattree.trace.plain import as_plain, from_plain

#: What a file of a calibration says it is.
SCHEMA = "wattree-energy/1"

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_WORDS = {"null", "true", "false"}

_HEAD = """\
# Constants of the stage model of one kind of node, made by `wattree energy fit`; docs/energy.md
# says what each is. SI units. `lower` and `upper` are intervals of 95 %. `status`: fitted; weak
# (the interval reaches zero or most of the range, or there is none); bound (the runs tell only a
# bound); inseparable (another constant stands for it); absent (no run exercises it).
"""


def calibration_as_json(calibration: EnergyCalibration) -> dict[str, Any]:
    """Return the content of a calibration file in plain types, with units next to the constants."""
    plain: dict[str, Any] = {"schema": SCHEMA, **as_plain(calibration)}
    for name, constant in plain["constants"].items():
        unit, meaning = CONSTANTS[name]
        plain["constants"][name] = {**constant, "unit": unit, "meaning": meaning}
    return plain


def write_energy_calibration(calibration: EnergyCalibration, path: str | Path) -> None:
    """Write a calibration to a YAML file atomically.

    Raises:
        OutputError: The file cannot be written.
    """
    lines = [_HEAD]
    for key, value in calibration_as_json(calibration).items():
        lines += _lines(key, value)
    write_atomic(Path(path), "\n".join(lines) + "\n")


def _lines(key: str, value: Any) -> list[str]:
    """Return a key with its value, a line for each item."""
    if isinstance(value, Mapping) and value:
        return [f"{key}:", *(f"  {_flow(name)}: {_flow(item)}" for name, item in value.items())]
    if isinstance(value, list) and value:
        return [f"{key}:", *(f"  - {_flow(item)}" for item in value)]
    return [f"{key}: {_flow(value)}"]


def _flow(value: Any) -> str:
    """Return a value on one line; anything but a plain word is written as JSON, valid in YAML."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value not in _WORDS:
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_calibration(path: str | Path) -> EnergyCalibration:
    """Return the calibration in a file.

    Raises:
        RunError: The file cannot be read, is of another schema, or holds what none can; every
            fault is listed.
    """
    source = str(path)
    try:
        found = read_yaml(path)
    except JobError as error:
        raise RunError(source, error.problems) from None
    schema = found.pop("schema", None)
    if schema != SCHEMA:
        what = "is missing" if schema is None else f"found {schema!r}"
        raise RunError(source, [f"schema: {what}, expected {SCHEMA!r}"])
    problems: list[str] = []
    constants = found.get("constants")
    if isinstance(constants, dict):
        for name, constant in constants.items():
            problems += _without_words(str(name), constant)
    calibration = from_plain(EnergyCalibration, found, problems)
    if calibration is not None and not problems:
        problems = _impossible(calibration)
    if calibration is None or problems:
        raise RunError(source, problems)
    return calibration


def _without_words(name: str, constant: Any) -> list[str]:
    """Remove the generated unit and meaning from a constant; return the faults found."""
    if not isinstance(constant, dict):
        return []
    constant.pop("meaning", None)
    unit = constant.pop("unit", None)
    if name in CONSTANTS and unit is not None and unit != CONSTANTS[name][0]:
        return [f"constants.{name}.unit: found {unit!r}, expected {CONSTANTS[name][0]!r}"]
    return []


def _impossible(calibration: EnergyCalibration) -> list[str]:
    problems = []
    for name in sorted(set(calibration.constants) ^ set(CONSTANTS)):
        what = "is missing" if name in CONSTANTS else "unknown constant"
        problems.append(f"constants.{name}: {what}")
    for name, constant in calibration.constants.items():
        problems += [f"constants.{name}.{line}" for line in constant_faults(name, constant)]
    if calibration.constants.get("energy.static_w", StageConstant(value=0.0)).value is None:
        problems.append("constants.energy.static_w.value: found null, expected a power")
    size = len(calibration.correlated)
    if [len(row) for row in calibration.covariance] != [size] * size:
        problems.append(f"covariance: expected {size} rows of {size}, as `correlated` names")
    else:
        problems += covariance_faults(calibration.covariance)
    problems += [
        f"correlated: unknown constant '{name}'"
        for name in calibration.correlated
        if calibration.constants.get(name, StageConstant(value=None)).value is None
    ]
    return [*problems, *impossible_elsewhere(calibration)]


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
