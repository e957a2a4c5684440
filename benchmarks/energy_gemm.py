"""Board power of matmuls: the shipped formula against measurements, and its fit.

Rows are products of 200 us and more (below, the sensor still shows the work before) whose power was
read; times are the row's own, so that only the power is judged, or Wattree's. Half of the shapes,
chosen by a hash of (m, n, k), make the constants; the table scores the other half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.frame import Measure, Options, Section
from wattree.arrays import Floats
from wattree.cost import Calibration, load_calibration, matmul_time_s
from wattree.cost.device_power import device_power
from wattree.cost.precisions import precision_class
from wattree.energy import DevicePower
from wattree.hardware import Precision, load_device

DEVICES: Mapping[str, str] = {
    "H200-SXM": "h200-sxm-141gb",
    "B200-SXM": "b200-sxm-180gb",
    "GB200": "gb200",
}
_LEFT_OUT = ("B200-SXM", "trtllm-1.3.0rc15")  # a partial run
_LEAST_US = 200.0
#: Precision of each kind of rows and the width of its operands; results have two bytes.
_DTYPES: Mapping[str, tuple[Precision, float]] = {
    "bf16": (Precision.BF16, 2.0),
    "fp8": (Precision.FP8, 1.0),
    "fp8_block": (Precision.MXFP8, 1.0),
    "nvfp4": (Precision.NVFP4, 0.5),
}
#: Products that take so many times what the device needs are launched one by one by a host that
#: does not keep up; kernels then run for the device's own time.
_HOST_BOUND = 10.0
_TARGETS = {"pooled": 0.08, "device": 0.11}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmRows:
    """Measured products of one device and number format; arrays of one length.

    Attributes:
        device: Catalog name.
        dtype: As the table has it.
        m, n, k: Shapes.
        time_s: Measured. [s]
        power_w, limit_w: Of the board: measured, and its limit. [W]
        fits: Whether the row makes constants; the others score them.
        device_s: What Wattree reckons that the device needs. [s]
    """

    device: str
    dtype: str
    m: Floats
    n: Floats
    k: Floats
    time_s: Floats
    power_w: Floats
    limit_w: float
    fits: NDArray[np.bool_]
    device_s: Floats

    @property
    def waits(self) -> NDArray[np.bool_]:
        """Return which products wait for their host: they take times what the device needs."""
        return self.time_s > _HOST_BOUND * self.device_s

    @property
    def precision(self) -> Precision:
        """Return the precision of its products."""
        return _DTYPES[self.dtype][0]

    @property
    def flop(self) -> Floats:
        """Return the work of each."""
        return 2.0 * self.m * self.n * self.k

    @property
    def traffic_bytes(self) -> Floats:
        """Return operands read and results written once. [B]"""
        width = _DTYPES[self.dtype][1]
        return (self.m * self.k + self.k * self.n) * width + 2.0 * self.m * self.n

    def picked(self, which: NDArray[np.bool_]) -> GemmRows:
        """Return some of the rows."""
        arrays = ("m", "n", "k", "time_s", "power_w", "fits", "device_s")
        return replace(self, **{name: getattr(self, name)[which] for name in arrays})


def read_rows(path: Path) -> list[GemmRows] | None:
    """Return the rows of a table, by device and number format; None without pyarrow."""
    try:
        from pyarrow import parquet
    except ImportError:
        return None
    names = ["gpu", "framework", "dtype", "m", "n", "k", "latency_us", "power_w", "power_limit_w"]
    chosen = [("power_w", ">", 0.0), ("latency_us", ">=", _LEAST_US), ("gpu", "in", list(DEVICES))]
    table = parquet.read_table(path, columns=names, filters=chosen)
    columns = {name: np.array(table[name].to_pylist()) for name in names}
    partial = (columns["gpu"] == _LEFT_OUT[0]) & (columns["framework"] == _LEFT_OUT[1])
    columns = {name: values[~partial] for name, values in columns.items()}
    shapes = zip(columns["m"], columns["n"], columns["k"], strict=True)
    columns["fits"] = np.array([_makes_constants(*shape) for shape in shapes])
    groups = sorted(set(zip(columns["gpu"], columns["dtype"], strict=True)))
    found = [
        _group({name: values[mine] for name, values in columns.items()}, gpu, dtype)
        for gpu, dtype in groups
        for mine in [(columns["gpu"] == gpu) & (columns["dtype"] == dtype)]
    ]
    calibration = load_calibration()
    return [replace(rows, device_s=_predicted_s(rows, calibration)) for rows in found]


def _makes_constants(m: int, n: int, k: int) -> bool:
    """Return whether a shape is in the half that makes constants; the same for all devices."""
    return hashlib.sha256(f"{m},{n},{k}".encode()).digest()[-1] % 2 == 1


def _group(columns: Mapping[str, NDArray[Any]], gpu: str, dtype: str) -> GemmRows:
    number = {name: columns[name].astype(np.float64) for name in ("m", "n", "k", "power_w")}
    return GemmRows(
        device_s=np.zeros(len(columns["m"])),
        device=DEVICES[gpu],
        dtype=str(dtype),
        time_s=columns["latency_us"].astype(np.float64) * 1e-6,
        limit_w=float(np.median(columns["power_limit_w"])),
        fits=columns["fits"],
        **number,
    )


def _power(rows: GemmRows, calibration: Calibration) -> DevicePower:
    device = load_device(rows.device)
    return device_power(device, rows.precision, calibration, limit_w=rows.limit_w).steady


def _errors(rows: GemmRows, power: DevicePower, time_s: Floats) -> Floats:
    """Return relative errors of the mean power over `time_s` a product."""
    running_s = np.where(rows.waits, rows.device_s, time_s)
    board_w = power.board_w(rows.flop, rows.traffic_bytes, running_s)
    mean_w = power.idle_w + (board_w - power.idle_w) * running_s / time_s
    return mean_w / rows.power_w - 1.0


def section(options: Options) -> Section | None:
    """Return the errors of the shipped constants on shapes that did not make them."""
    groups = read_rows(options.opdata / "gemm_lowprec.parquet")
    if groups is None:
        return None
    measures, known = [], []
    for dtypes in (("bf16",), tuple(_DTYPES)):
        label = "bf16" if len(dtypes) == 1 else "all formats"
        parts = []
        for name in DEVICES.values():
            mine = [
                (rows, _power(rows, options.calibration))
                for rows in (group.picked(~group.fits) for group in groups)
                if rows.device == name and rows.dtype in dtypes
            ]
            errors = np.concatenate([_errors(r, p, r.time_s) for r, p in mine])
            target = _TARGETS["device"] if label == "bf16" else None
            measures.append(Measure.of(f"{label}, {name}", errors, target))
            parts.append(errors)
            if label == "bf16":
                own = [_errors(r, p, r.device_s) for r, p in mine]
                note = "with Wattree's time instead of the measured one"
                known.append(Measure.of(f"{label}, {name}, {note}", np.concatenate(own), None))
        target = _TARGETS["pooled"] if label == "bf16" else None
        measures.append(Measure.of(f"{label}, pooled", np.concatenate(parts), target))
    swapped = [
        Measure.of(f"{rows.dtype}, {rows.device}, halves swapped", _swapped(rows), None)
        for rows in groups
        if rows.dtype == "bf16" and options.refits
    ]
    by_format = [
        Measure.of(
            f"{rows.dtype}, {rows.device}",
            _errors(rows, _power(rows, options.calibration), rows.time_s),
            None,
        )
        for rows in (group.picked(~group.fits) for group in groups)
        if rows.dtype != "bf16"
    ]
    return Section(
        title="Board power of matmuls of 200 us and more",
        measures=tuple(measures),
        details=(*known, *by_format, *swapped),
    )


def _predicted_s(rows: GemmRows, calibration: Calibration) -> Floats:
    device = load_device(rows.device)
    share = calibration.device(device, f"matmul.{precision_class(rows.precision)}")
    return matmul_time_s(
        m=rows.m,
        n=rows.n,
        k=rows.k,
        groups=np.ones_like(rows.m),
        flop_per_s=device.matrix_peak_flop_per_s(rows.precision) * share,
        compute_units=device.compute_units,
        traffic_bytes=rows.traffic_bytes,
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s
        * calibration.device(device, "library_bandwidth"),
    )


def _swapped(rows: GemmRows) -> Floats:
    """Return the errors of the half that made the shipped constants, by those of the other."""
    other = rows.picked(~rows.fits)
    at = _fitted([other])
    return _errors(
        rows.picked(rows.fits), _with(_power(rows, load_calibration()), at), rows.time_s[rows.fits]
    )


def fit(options: Options) -> dict[str, float]:
    """Return constants by name, from the half of the shapes that makes them.

    Products of 16 bits make what a device draws besides work, for memory and at its limit; each
    other format then its own share at peak rate.
    """
    groups = read_rows(options.opdata / "gemm_lowprec.parquet") or []
    found = {}
    for name in DEVICES.values():
        mine = {g.dtype: g.picked(g.fits) for g in groups if g.device == name}
        at = _fitted([mine["bf16"]])
        for item in ("active", "memory", "held"):
            found[f"device.{name}.power_{item}"] = at[item]
        found[f"device.{name}.power_math.bf16"] = at["math"]
        formats = {"fp8": "fp8" if "fp8" in mine else "fp8_block", "nvfp4": "nvfp4"}
        for item, dtype in formats.items():
            if dtype in mine:
                own = _fitted([mine[dtype]], fixed={k: v for k, v in at.items() if k != "math"})
                found[f"device.{name}.power_math.{item}"] = own["math"]
    return found


#: Where the search begins, and how weakly it is drawn there.
_START = {"active": 0.3, "memory": 0.4, "math": 1.5, "held": 0.98}
_PULL = 3e-4
#: Above it every product of any size is at its limit: rows do not tell values apart.
_MOST = 4.0


def _fitted(groups: Sequence[GemmRows], fixed: Mapping[str, float] = {}) -> dict[str, float]:
    """Return the constants of least mean absolute error, with a weak pull to their start."""
    names = [name for name in _START if name not in fixed]
    first = np.log([_START[name] for name in names])

    def constants(at: Floats) -> dict[str, float]:
        shares = np.minimum(np.exp(at), _MOST).tolist()
        return {**fixed, **dict(zip(names, shares, strict=True))}

    powers = [_power(rows, load_calibration()) for rows in groups]

    def loss(at: Floats) -> float:
        own = constants(at)
        each = [
            np.abs(_errors(rows, _with(power, own), rows.time_s))
            for rows, power in zip(groups, powers, strict=True)
        ]
        return float(np.mean(np.concatenate(each)) + _PULL * np.sum((at - first) ** 2))

    options = {"maxiter": 30, "xtol": 1e-4, "ftol": 1e-6}
    best = min(
        (minimize(loss, first + shift, method="Powell", options=options) for shift in (0.0, -0.3)),
        key=lambda found: float(found.fun),
    )
    return constants(np.atleast_1d(best.x))


def _with(power: DevicePower, constants: Mapping[str, float]) -> DevicePower:
    return replace(
        power,
        active_share=constants["active"],
        memory_share=constants["memory"],
        math_share=constants["math"],
        held_share=constants["held"],
    )
