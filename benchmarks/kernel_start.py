"""What a kernel takes to start, and Hopper's tiles, from products that graphs replay.

    python -m benchmarks.kernel_start [DIR]

DIR holds `gemm_lowprec.parquet` (extra `fit`); by default `../shared/opdata`. Three models, each
with a share of the peak and of the bandwidth of its own for every table, fitted on half of the
shapes and scored on the other: no product shorter than a start; a start added to the work of each;
the same with a ramp of tiles that is free. The last makes `general.graph_start_s`, the ramp of
`wattree.cost.convolution.HOPPER_KERNELS`, and, on the table that was taken at sustained clocks
(board power was sampled), `architecture.hopper.convolution.bf16`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.optimize import minimize

from wattree.cost import load_calibration
from wattree.cost.convolution import (
    MATRIX_KERNELS,
    Convolution,
    ConvolutionPass,
    ConvolutionRates,
    convolution_time_s,
)
from wattree.cost.rates import convolution_rates
from wattree.hardware import Device, Precision, load_device

__all__ = ["main"]

Floats = NDArray[np.float64]

_FILE = "gemm_lowprec.parquet"
_DEVICES = {"H100-SXM-80GB": "h100-sxm-80gb", "H200-SXM": "h200-sxm-141gb"}
_SMALLEST = 64  # rows, columns and contraction of products that training has
_FITTED, _SEED = 3000, 0
#: Start of the fit: a kernel's start [us], shares of peak and bandwidth, ramp.
_FIRST = (2.0, 0.9, 0.9, 100.0)


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


_Model = Callable[[Sequence[float], _Products], Floats]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).parents[2] / "shared" / "opdata"
    parser.add_argument("dir", nargs="?", type=Path, default=default, help="folder of tables")
    path = parser.parse_args(arguments).dir / _FILE
    table = Table(title="bf16 products replayed from graphs: errors on shapes left out of the fit")
    for name in ("device", "library", "model", "start", "ramp", "of peak", "mean", "median"):
        table.add_column(name, justify="left" if name in {"device", "library", "model"} else "right")
    for products in _tables(path):
        halves = _halves(products)
        for name, (model, free) in _MODELS.items():
            found = _fitted(model, halves[0], free)
            errors = np.abs(model(found, halves[1]) / halves[1].measured_s - 1.0)
            table.add_row(
                products.device.name,
                products.library + (", sustained" if products.sustained else ""),
                name,
                f"{found[0]:.2f} us",
                f"{found[3]:.0f}" if len(found) > 3 else "",  # noqa: PLR2004
                f"{found[1]:.2f}",
                f"{errors.mean():.1%}",
                f"{np.median(errors):.1%}",
            )
    Console(width=120).print(table)
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


def _work_s(at: Sequence[float], products: _Products) -> Floats:
    """Return the time of products as convolutions of one tap. [s]"""
    _, share, bandwidth, *ramp = at
    kernels = replace(MATRIX_KERNELS, ramp=ramp[0]) if ramp else MATRIX_KERNELS
    rates: ConvolutionRates = replace(
        convolution_rates(products.device, Precision.BF16, load_calibration()),
        product=share,
        memory_bytes_per_s=products.device.memory_bandwidth_bytes_per_s * bandwidth,
        kernels=kernels,
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
    return convolution_time_s(shape, ConvolutionPass.FORWARD, rates, traffic)


def _at_least(at: Sequence[float], products: _Products) -> Floats:
    return np.maximum(at[0] * 1e-6, _work_s(at, products))


def _added(at: Sequence[float], products: _Products) -> Floats:
    return np.asarray(at[0] * 1e-6 + _work_s(at, products))


#: Name → model, and how many of its constants are free.
_MODELS: dict[str, tuple[_Model, int]] = {
    "no shorter than a start": (_at_least, 3),
    "start added": (_added, 3),
    "start added, ramp free": (_added, 4),
}


def _fitted(model: _Model, products: _Products, free: int) -> list[float]:
    def loss(at: Floats) -> float:
        ratio = model(np.exp(at).tolist(), products) / products.measured_s
        return float(np.mean(np.abs(np.log(ratio))))

    options = {"maxiter": 400}
    best = minimize(loss, np.log(_FIRST[:free]), method="Nelder-Mead", options=options)
    return list(np.exp(best.x).tolist())


if __name__ == "__main__":
    raise SystemExit(main())
