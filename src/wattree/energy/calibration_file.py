"""Files of energy calibrations: YAML with the keys of the types in `calibration.py`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattree.energy.calibration import (
    CONSTANTS,
    SCALING_WORK,
    EnergyCalibration,
    StageConstant,
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
    problems += [*_beyond(calibration), *_in_wrong_order(calibration)]
    if calibration.constants.get("energy.static_w", StageConstant(value=0.0)).value is None:
        problems.append("constants.energy.static_w.value: found null, expected a power")
    size = len(calibration.correlated)
    if [len(row) for row in calibration.covariance] != [size] * size:
        problems.append(f"covariance: expected {size} rows of {size}, as `correlated` names")
    else:
        problems += _covariance_faults(calibration.covariance)
    problems += [
        f"correlated: unknown constant '{name}'"
        for name in calibration.correlated
        if calibration.constants.get(name, StageConstant(value=None)).value is None
    ]
    problems += [
        f"models.{model}.work.{name}: expected one of {', '.join(SCALING_WORK)}"
        for model, traits in calibration.models.items()
        for name in sorted(set(traits.work) - set(SCALING_WORK))
    ]
    return problems


#: Figures beyond are of no machine, and their squares and products overflow.
_LEAST, _MOST = 1e-30, 1e30
#: Field or constant → least and greatest value, where these are others than 0 and the greatest.
_BOUNDS = {
    "devices_per_node": (0, 10**4),
    "most_nodes": (1, 10**7),
    "time_ratio": (_LEAST, _MOST),
    "energy_ratio": (_LEAST, _MOST),
    "overlap": (0, 1),
    "runs": (0, _MOST),
}
_ROUNDING = 1e-9


def _beyond(part: Any, where: str = "", bounds: tuple[float, float] = (0, _MOST)) -> Iterator[str]:
    """Yield figures out of bounds in a dataclass and in what it holds, with their keys."""
    items = part
    if is_dataclass(part):
        items = {each.name: getattr(part, each.name) for each in fields(part)}
    for key, value in items.items():
        within = _BOUNDS.get(key.rpartition(".")[2], bounds)
        if isinstance(value, Mapping) or is_dataclass(value):
            yield from _beyond(value, f"{where}{key}.", within)
        elif isinstance(value, int | float) and (fault := _outside(value, *within)):
            yield f"{where}{key}: {fault}"


def _outside(value: float, least: float, most: float) -> str:
    """Return the fault of a figure; nothing if it is valid."""
    if not (math.isfinite(value) and least <= value <= most):
        return f"found {value}, expected a finite number of {least:g} or more, at most {most:g}"
    return f"found {value}, expected 0, or at least {_LEAST:g}" if 0 < value < _LEAST else ""


def _in_wrong_order(calibration: EnergyCalibration) -> Iterator[str]:
    """Yield intervals that do not hold their values, and ranges that hold none."""
    for name, constant in calibration.constants.items():
        spans = (constant.lower, constant.value, constant.upper)
        ends = [each for each in spans if each is not None]
        if any(b < a * (1 - _ROUNDING) for a, b in pairwise(ends)):
            yield (
                f"constants.{name}.lower: found lower {constant.lower}, value {constant.value} "
                f"and upper {constant.upper}, expected them in this order"
            )
    for name, traits in calibration.models.items():
        if traits.least_samples > traits.most_samples:
            yield (
                f"models.{name}.least_samples: found {traits.least_samples}, expected at most "
                f"most_samples, {traits.most_samples}"
            )


def _covariance_faults(covariance: Sequence[Sequence[float]]) -> Iterator[str]:
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
