"""Data of the page's plots as compact JSON columns: a report may hold 10,000 points.

Numbers of points are little-endian arrays in base64: `f32` for figures (seven digits), `u8`, `u16`
or `u32` for indices into lists of texts. NaN stands for what is unknown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.design import Results, WorkloadOutcome
from wattree.design.answers import AxisColumn, NoAnswer, StudySummary, Tornado, Worth
from wattree.report.design.basis import is_reconstruction
from wattree.report.design.words import MEASURES, SHORT, level
from wattree.report.words import part_in_words
from wattree.trace import STAGES, STEP_PART_WORDS
from wattree.units import named_unit

#: Figures of a workload that can be drawn → what people call them.
_FIGURES = {
    "time_s": "time to target",
    "energy_j": "energy to target",
    "cost_usd": "cost to target",
    "carbon_gco2e": "carbon to target",
    "step_time_s": "time of a step",
    "step_time_low_s": "time of a step, low end of 80 %",
    "step_time_high_s": "time of a step, high end of 80 %",
    "average_power_w": "average power",
    "memory_bytes": "memory of the fullest device",
}


def payload(results: Results, summary: StudySummary) -> dict[str, Any]:
    """Return everything that the plots of the page need."""
    sweep = summary.sweep
    return {
        "points": len(sweep),
        "marked": "reconstruction" if is_reconstruction(results.study) else "",
        "axes": [_axis(axis) for axis in sweep.axes],
        "feasible": _packed(sweep.feasible, np.uint8),
        "reason": _texts([one.reason or "" for one in results.outcomes]),
        "measures": [
            {
                "name": name,
                "label": MEASURES[name],
                "short": SHORT[name],
                "unit": named_unit(name),
                "values": _f32(values),
            }
            for name, values in sweep.measures.items()
        ],
        "workloads": [
            _workload(workload.name, results.of_workload(workload.name))
            for workload in results.study.workloads
        ],
        "objectives": list(summary.measures),
        "tornados": [_tornado(summary, name) for name in summary.measures],
        "worths": [_worth(summary, name, found) for name, found in summary.worths.items()],
    }


def script_json(value: object) -> str:
    r"""Return JSON that may stand in a `<script>`: no text in it can end that or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _axis(axis: AxisColumn) -> dict[str, Any]:
    numbers = (axis.numbers / axis.factor).tolist() if axis.numeric else None
    return {
        "name": axis.name,
        "label": axis.label,
        "unit": axis.unit or "",
        "numbers": numbers,
        "levels": [level(axis, value) for value in axis.levels],
        "codes": _codes(axis.codes, len(axis.levels)),
    }


def _workload(name: str, found: Sequence[WorkloadOutcome | None]) -> dict[str, Any]:
    return {
        "name": name,
        "strategy": _texts([one.strategy if one else "" for one in found]),
        "notes": _texts(["; ".join(one.notes) if one else "" for one in found]),
        "simulated": _packed(np.array([bool(one and one.simulated) for one in found]), np.uint8),
        "figures": [
            {"name": figure, "label": label, "unit": named_unit(figure), "values": values}
            for figure, label in _FIGURES.items()
            if (values := _known(found, lambda one, f=figure: getattr(one, f))) is not None  # type: ignore[misc]
        ],
        "time_parts": _parts(found, "time_parts_s"),
        "energy_parts": _parts(found, "energy_by_stage_j"),
        # Per step, for points whose energy is not divided into stages.
        "step_energy": _known(found, _step_energy) or _f32(np.full(len(found), np.nan)),
    }


def _step_energy(one: WorkloadOutcome) -> float | None:
    if one.energy_by_stage_j:
        return sum(one.energy_by_stage_j.values())
    if one.energy_j is None or not one.time_s or one.step_time_s is None:
        return None
    return one.energy_j * one.step_time_s / one.time_s


def _parts(found: Sequence[WorkloadOutcome | None], field: str) -> list[dict[str, Any]]:
    """Return the parts that any point has, in words, with the place of their color."""
    sums = [getattr(one, field) for one in found if one]
    names = dict.fromkeys(name for parts in sums for name, part in parts.items() if part)
    order = (*STEP_PART_WORDS, *STAGES)
    return [
        {
            "name": part_in_words(name),
            "color": order.index(name) if name in order else place,
            "values": _known(found, lambda one, n=name: getattr(one, field).get(n)),  # type: ignore[misc]
        }
        for place, name in enumerate(names)
    ]


def _known(
    found: Iterable[WorkloadOutcome | None], figure: Callable[[WorkloadOutcome], float | None]
) -> dict[str, str] | None:
    values = [None if one is None or not one.feasible else figure(one) for one in found]
    if all(value is None for value in values):
        return None
    return _f32(np.array([np.nan if value is None else value for value in values]))


def _tornado(summary: StudySummary, measure: str) -> dict[str, Any]:
    found = summary.tornados[measure]
    if isinstance(found, NoAnswer):
        return {"measure": measure, "label": MEASURES[measure], "reason": found.reason, "bars": []}
    return {
        "measure": measure,
        "label": MEASURES[measure],
        "base": found.base,
        "bars": _bars(summary, found),
    }


def _bars(summary: StudySummary, found: Tornado) -> list[dict[str, Any]]:
    axes = {axis.name: axis for axis in summary.sweep.axes}
    return [
        {
            "axis": axes[bar.axis].label,
            "low": bar.lowest,
            "high": bar.highest,
            "at_low": level(axes[bar.axis], bar.at_lowest),
            "at_high": level(axes[bar.axis], bar.at_highest),
            "base": level(axes[bar.axis], bar.base),
        }
        for bar in found.bars
    ]


def _worth(
    summary: StudySummary, name: str, found: tuple[Worth | NoAnswer, Worth | NoAnswer]
) -> dict[str, Any]:
    axis = next(axis for axis in summary.sweep.axes if axis.name == name)
    lines = []
    for label, worth in zip(
        ("all else reoptimized", "all else as at the best"), found, strict=True
    ):
        if isinstance(worth, NoAnswer):
            continue
        values = summary.sweep.measures[worth.measure]
        fitting = [one for one in worth.levels if one.point is not None]
        lines.append(
            {
                "label": label,
                "codes": [axis.levels.index(one.value) for one in fitting],
                "values": [float(values[one.point]) for one in fitting if one.point is not None],
                "points": [one.point for one in fitting],
            }
        )
    against = (one.anew for one in summary.comparisons if one.anew.along == name)
    by = next((one.alternative for one in against if one.crossings), "")
    return {"axis": name, "lines": lines, "by": by}


def _texts(values: Sequence[str]) -> dict[str, Any]:
    place = {text: code for code, text in enumerate(dict.fromkeys(values))}
    codes = np.array([place[text] for text in values], dtype=np.int64)
    return {"texts": list(place), "codes": _codes(codes, len(place))}


def _codes(codes: NDArray[np.int64], count: int) -> dict[str, str]:
    return _packed(codes, np.uint8 if count < 256 else np.uint16 if count < 65536 else np.uint32)


def _f32(values: NDArray[np.float64]) -> dict[str, str]:
    return _packed(values, np.float32)


def _packed(values: NDArray[Any], kind: type[np.generic]) -> dict[str, str]:
    array = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    short = {"u": "u", "f": "f"}[array.dtype.kind] + str(8 * array.dtype.itemsize)
    return {"kind": short, "data": base64.b64encode(array.tobytes()).decode("ascii")}
