"""Clocks and power under limits and locked clocks: rows that made no constant.

- B300: clock of one kernel under board limits, from its power without one (gpu_power_lab).
- V100, RTX 8000: power of kernels at locked clocks, from that at the highest (nv_dvfs_benchmark).
- V100: power of training under limits, from that under the highest (zeus_tests).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.frame import Measure, Options, Section
from wattree.arrays import Floats
from wattree.cost.device_power import clock_curve, device_mixture
from wattree.energy import ClockCurve, Demand, clock_under_limit, power_at_clock_w, under_limit
from wattree.hardware import load_device

Rows = list[dict[str, str]]

_B300 = "b300-sxm-288gb"
_LOCKED = {"V100": "v100-pcie-16gb", "Quadro-RTX8000": "rtx-8000-turing"}
_SWEPT = {"V100": "v100-pcie-16gb", "A40": "a40"}


def section(options: Options) -> Section | None:
    """Return errors on rows that made none of the constants."""
    files = ("power_gpu_lab.csv", "power_dvfs.csv", "power_limit_sweep.csv")
    if not all((options.opdata / name).is_file() for name in files):
        return None
    lab, locked, swept = (_read(options.opdata / name) for name in files)
    return Section(
        title="Clocks and power on rows that made no constant",
        measures=(
            _under_board_limits(lab, options),
            *_at_locked_clocks(locked, options),
            *_swept(swept, options),
        ),
    )


def _read(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _of_compute(power_w: Floats, leakage_w: float) -> Demand:
    """Return the demand of work that arithmetic bounds."""
    one = np.ones_like(power_w)
    return Demand(
        clocked_w=power_w - leakage_w, memory_w=0.0 * one, math_share=one, memory_share=0.0 * one
    )


def _under_board_limits(rows: Rows, options: Options) -> Measure:
    """Return the errors of the clock of one kernel under limits."""
    curve = clock_curve(load_device(_B300), options.calibration)
    return Measure.of("clock under a limit, B300", _clock_errors(rows, curve), None)


def _clock_errors(rows: Rows, curve: ClockCurve) -> Floats:
    capped = {}
    for row in rows:
        if row["case"].startswith("cap-") and row["gpu"].startswith("B300"):
            capped[float(row["enforced_limit_w"])] = row
    free = capped.pop(max(capped))  # ramps up as it is read: its median is what it draws
    limits = np.array(list(capped))
    demand = _of_compute(np.full(len(limits), float(free["p50_w"])), curve.leakage_w)
    clock = clock_under_limit(demand, limits, curve) * float(free["sm_mhz"])
    measured = np.array([float(row["sm_mhz"]) for row in capped.values()])
    return clock / measured - 1.0


def _at_locked_clocks(rows: Rows, options: Options) -> list[Measure]:
    """Return the errors of power at locked clocks, from that at the highest clock."""
    found = []
    for printed, name in _LOCKED.items():
        curve = clock_curve(load_device(name), options.calibration)
        kernels: dict[tuple[str, ...], Rows] = {}
        for row in rows:
            if row["gpu"] == printed and row["source"] == "nv_dvfs_benchmark":
                key = row["suite"], row["benchmark"], row["arg"], row["kernel"]
                kernels.setdefault(key, []).append(row)
        errors = []
        for mine in kernels.values():
            top = max(mine, key=lambda row: float(row["core_mhz"]))
            rest = [row for row in mine if row is not top]
            clock = np.array([float(row["core_mhz"]) for row in rest]) / float(top["core_mhz"])
            demand = _of_compute(np.full(len(rest), float(top["avg_power_w"])), curve.leakage_w)
            predicted = power_at_clock_w(demand, clock, curve)
            measured = np.array([float(row["avg_power_w"]) for row in rest])
            errors.append(predicted / measured - 1.0)
        found.append(Measure.of(f"power at a locked clock, {name}", np.concatenate(errors), None))
    return found


def _swept(rows: Rows, options: Options) -> list[Measure]:
    """Return the errors of power and time of training under limits."""
    found = []
    for printed, name in _SWEPT.items():
        runs: dict[tuple[str, ...], dict[float, Mapping[str, float]]] = {}
        for row in rows:
            if row["gpu"] == printed:
                key = row["model"], row["num_gpus"], row["gpu_index"]
                figures = {"w": float(row["avg_power_w"]), "s": float(row["elapsed_s"])}
                runs.setdefault(key, {})[float(row["power_limit_w"])] = figures
        if not runs:
            continue
        mixture = device_mixture(load_device(name), options.calibration)
        power, time = [], []
        for mine in runs.values():
            highest = max(mine)
            anchor = mine.pop(highest)
            limits = np.array(list(mine))
            same = np.ones_like(limits)
            run = under_limit(
                mixture,
                power_w=anchor["w"] * same,
                anchor_limit_w=highest * same,
                limit_w=limits,
            )
            power.append(run.power_w / np.array([row["w"] for row in mine.values()]) - 1.0)
            taken = np.array([row["s"] for row in mine.values()]) / anchor["s"]
            time.append(run.stretch / taken - 1.0)
        found.append(Measure.of(f"power of training, {name}", np.concatenate(power), None))
        found.append(Measure.of(f"time of training, {name}", np.concatenate(time), None))
    return found
