"""What a kernel takes to start, and Hopper's tiles, from products that graphs replay.

    python -m benchmarks.kernel_start [DIR]

DIR holds `gemm_lowprec.parquet` (extra `fit`); by default `../shared/opdata`. Two models, each with
a start and shares of the peak and of the bandwidth of its own for every table, fitted on half of
the shapes and scored on the other: no product shorter than a start, and a start added to the work
of each; the latter for several ramps of tiles. The ramp that errs least over all tables is that of
`wattree.cost.convolution.HOPPER_KERNELS`; with it, the mean start makes `general.graph_start_s`,
and the share of the table that was taken at sustained clocks (board power was sampled)
`architecture.hopper.convolution.bf16`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from benchmarks.frame import SHARED
from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.cost.convolution import (
    MATRIX_KERNELS,
    Convolution,
    ConvolutionPass,
    convolution_time_s,
)
from wattree.cost.convolution_rates import convolution_rates
from wattree.hardware import Device, Precision, load_device

_FILE = "gemm_lowprec.parquet"
_DEVICES = {"H100-SXM-80GB": "h100-sxm-80gb", "H200-SXM": "h200-sxm-141gb"}
_SMALLEST = 64  # rows, columns and contraction of products that training has
_FITTED, _SEED = 3000, 0
#: Start of the fit: a kernel's start [us], shares of peak and bandwidth.
_FIRST = (2.0, 0.9, 0.9)
_RAMPS = (MATRIX_KERNELS.ramp, 60.0, 100.0, 140.0, 180.0, 220.0, 260.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Products:
    """Measured bf16 products of one device and library, arrays of one length."""

    device: Device
    library: str
    sustained: bool
    m: Floats
    n: Floats
    k: Floats
    measured_s: Floats

    def at(self, picked: NDArray[np.int64]) -> _Products:
        """Return some of them."""
        m, n, k, measured_s = (x[picked] for x in (self.m, self.n, self.k, self.measured_s))
        return replace(self, m=m, n=n, k=k, measured_s=measured_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "dir", nargs="?", type=Path, default=SHARED / "opdata", help="folder of tables"
    )
    tables = list(_tables(parser.parse_args(arguments).dir / _FILE))
    shown = Table(title="bf16 products replayed from graphs: errors on shapes left out of the fit")
    for name in ("ramp", "start is", "start, us", "of peak", "mean |error|", "all tables"):
        shown.add_column(name, justify="left" if name == "start is" else "right")
    for ramp, is_added in [(_RAMPS[0], False), *((ramp, True) for ramp in _RAMPS)]:
        found = [_scored(_Model(ramp=ramp, is_added=is_added), products) for products in tables]
        starts, shares, errors = zip(*found, strict=True)
        cells = (", ".join(f"{x:.2f}" for x in each) for each in (starts, shares))
        each_error = ", ".join(f"{error:.1%}" for error in errors)
        word = "added" if is_added else "the least"
        shown.add_row(f"{ramp:.0f}", word, *cells, each_error, f"{np.mean(errors):.2%}")
    console = Console(width=120)
    console.print(shown)
    names = (
        f"{table.device.name} {table.library}{', sustained' * table.sustained}" for table in tables
    )
    console.print(f"tables: {'; '.join(names)}")
    return 0


def _tables(path: Path) -> Iterator[_Products]:
    try:
        from pyarrow import compute, parquet
    except ModuleNotFoundError:
        print("pyarrow is not installed: nothing to read the table with", file=sys.stderr)
        return
    rows = parquet.read_table(path)
    text = {name: rows[name].cast("string") for name in ("gpu", "dtype", "framework")}
    for gpu, device in _DEVICES.items():
        ours = compute.and_(compute.equal(text["gpu"], gpu), compute.equal(text["dtype"], "bf16"))
        for library in sorted(set(text["framework"].filter(ours).to_pylist())):
            part = rows.filter(compute.and_(ours, compute.equal(text["framework"], library)))
            m, n, k, latency_us = (
                np.asarray(part[name].to_numpy(), dtype=np.float64)
                for name in ("m", "n", "k", "latency_us")
            )
            large = np.flatnonzero(np.minimum(np.minimum(m, n), k) >= _SMALLEST)
            yield _Products(
                device=load_device(device),
                library=library,
                sustained=part["power_w"].null_count < part.num_rows,
                m=m,
                n=n,
                k=k,
                measured_s=latency_us * 1e-6,
            ).at(large)


def _halves(products: _Products) -> tuple[_Products, _Products]:
    every = np.arange(len(products.m))
    drawn = np.random.default_rng(_SEED).choice(every[::2], _FITTED, replace=False)
    return products.at(drawn), products.at(every[1::2])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """Time of a product.

    Attributes:
        is_added: The start adds to the work; otherwise it is the least there is.
    """

    ramp: float
    is_added: bool

    def time_s(self, at: Sequence[float], products: _Products) -> Floats:
        """Return times, as convolutions of one tap, of a start and two shares. [s]"""
        start_s, share, bandwidth = at[0] * 1e-6, at[1], at[2]
        rates = replace(
            convolution_rates(products.device, Precision.BF16, load_calibration()),
            matmul=share,
            memory_bytes_per_s=products.device.memory_bandwidth_bytes_per_s * bandwidth,
            kernels=replace(MATRIX_KERNELS, ramp=self.ramp),
        )
        m, n, k = products.m, products.n, products.k
        shape = Convolution(
            positions=m,
            in_channels=k,
            out_channels=n,
            groups=np.ones_like(m),
            taps=1,
            stride_area=1.0,
            square=True,
        )
        traffic = (m * k + k * n + m * n) * rates.element_bytes
        work_s = convolution_time_s(shape, ConvolutionPass.FORWARD, rates, traffic)
        return np.asarray(start_s + work_s if self.is_added else np.maximum(start_s, work_s))


def _scored(model: _Model, products: _Products) -> tuple[float, float, float]:
    """Return start [us] and share of the peak, and the mean error on the other half."""
    fitted, other = _halves(products)

    def loss(at: Floats) -> float:
        ratio = model.time_s(np.exp(at).tolist(), fitted) / fitted.measured_s
        return float(np.mean(np.abs(np.log(ratio))))

    best = minimize(loss, np.log(_FIRST), method="Nelder-Mead", options={"maxiter": 400})
    at = np.exp(best.x).tolist()
    error = float(np.mean(np.abs(model.time_s(at, other) / other.measured_s - 1.0)))
    return at[0], at[1], error


if __name__ == "__main__":
    raise SystemExit(main())
