"""Constants of the convolution model, remade from measured convolutions.

Kernels (tiles, ramp, roofs) and rates of gradients are shared by all devices with matrix units, or
by all runs without; every device has the share of its peak that large products reach. The mean
absolute logarithm of the error is minimized, with a weak pull to the start values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from rich.console import Console
from scipy.optimize import minimize

from benchmarks.operator_rows import Convolutions, predicted_s
from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.cost.convolution import Convolution, ConvolutionRates, Kernels
from wattree.cost.convolution_rates import convolution_rates
from wattree.hardware import Device, Precision

#: Start of each constant; the last is the launch of one call. [1 and s]
_START: Mapping[Precision, Mapping[str, float]] = {
    Precision.FP32: {"ramp": 60.0, "strided": 0.7},
    Precision.FP16: {"ramp": 200.0, "strided": 0.7},
}
_SHARED = {
    "winograd": 0.95,
    "input_gradient": 0.9,
    "weight_gradient": 0.9,
    "unaligned": 0.5,
    "roofs": 2.0,
    "split_waves": 1.0,
    "tile_128_64": 0.9,
    "tile_64_64": 0.8,
    "tile_128_32": 0.6,
    "launch_s": 5e-6,
}
_PRODUCT = 0.8  # start of a device's share of its peak
_PULL = 0.003
_calibration = cache(load_calibration)
#: The library behind the fit; the other source left the choice of algorithm to heuristics.
_SOURCE = "deepbench"
#: Shares beyond what hardware can do, and exponents without meaning.
_LIMITS = {"winograd": (0.1, 1.0), "roofs": (1.0, 6.0), "split_waves": (0.25, 4.0)}
_TILES = ("tile_128_64", "tile_64_64", "tile_128_32")


def print_fit(groups: Sequence[Convolutions], console: Console) -> None:
    """Print the constants of each precision, and errors on rows and devices that were left out."""
    for precision in (Precision.FP32, Precision.FP16):
        mine = [g for g in groups if g.source == _SOURCE and g.precision is precision]
        halves = [[_every_other(g, start) for g in mine] for start in (0, 1)]
        constants = _fitted(halves[0])
        console.rule(f"{precision}: {sum(len(g.measured_s) for g in mine)} rows")
        for name, value in constants.items():
            console.print(f"{name:28} {value:.4g}")
        for name, part in zip(("fitted rows", "rows between"), halves, strict=True):
            console.print(f"{name}: {_described(_errors(part, constants))}")
        for device in sorted({g.device.name for g in mine}):
            rest = _fitted([g for g in halves[0] if g.device.name != device])
            shares = [v for name, v in rest.items() if name.startswith("product.")]
            rest[f"product.{device}"] = float(np.exp(np.mean(np.log(shares))))
            part = [g for g in mine if g.device.name == device]
            console.print(f"without {device}: {_described(_errors(part, rest))}")


def _every_other(group: Convolutions, start: int) -> Convolutions:
    picked = slice(start, None, 2)
    shape = group.shape
    return replace(
        group,
        shape=Convolution(
            positions=shape.positions[picked],
            in_channels=shape.in_channels[picked],
            out_channels=shape.out_channels[picked],
            groups=shape.groups[picked],
            taps=shape.taps,
            stride_area=shape.stride_area,
            square=shape.square,
        ),
        traffic_bytes=group.traffic_bytes[picked],
        measured_s=group.measured_s[picked],
    )


def _fitted(groups: Sequence[Convolutions]) -> dict[str, float]:
    precision = groups[0].precision
    start = {**_START[precision], **_SHARED}
    start |= {f"product.{name}": _PRODUCT for name in sorted({g.device.name for g in groups})}
    names, first = list(start), np.log(list(start.values()))

    def loss(at: Floats) -> float:
        constants = dict(zip(names, np.exp(at), strict=True))
        error = np.mean(np.abs(_errors(groups, constants)))
        return float(error + _PULL * np.mean((at - first) ** 2) + _excess(constants))

    options = {"maxiter": 8, "xtol": 1e-2, "ftol": 1e-4}
    best = minimize(loss, first, method="Powell", options=options)
    return dict(zip(names, np.exp(best.x).tolist(), strict=True))


def _excess(constants: Mapping[str, float]) -> float:
    limits = {name: (0.1, 1.0) for name in constants if name.startswith("product.")} | _LIMITS
    limits |= dict.fromkeys(_TILES, (0.1, 1.0))
    over = (
        max(constants[name] / high - 1.0, low / constants[name] - 1.0, 0.0)
        for name, (low, high) in limits.items()
    )
    return 2.0 * sum(over)


def _errors(groups: Sequence[Convolutions], constants: Mapping[str, float]) -> Floats:
    """Return the logarithms of predicted over measured."""
    return np.concatenate(
        [
            np.log(
                predicted_s(group, _rates(group.device, group.precision, constants), launch_s)
                / group.measured_s
            )
            for launch_s in (constants["launch_s"],)
            for group in groups
        ]
    )


def _rates(
    device: Device, precision: Precision, constants: Mapping[str, float]
) -> ConvolutionRates:
    matmul = constants[f"product.{device.name}"]
    matrix = precision is not Precision.FP32
    wide, square, thin = (constants[name] for name in _TILES)
    largest = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.93))
    kernels = Kernels(
        tiles=(*largest, (128, 64, wide), (64, 64, square))
        if matrix
        else ((128, 128, 1.0), (128, 64, wide), (64, 64, square), (128, 32, thin), (32, 32, 0.5)),
        ramp=constants["ramp"],
        split_waves=constants["split_waves"],
        roofs=constants["roofs"],
        matrix=matrix,
    )
    return replace(
        convolution_rates(device, precision, _calibration()),
        kernels=kernels,
        matmul=matmul,
        winograd=matmul * constants["winograd"],
        input_gradient=constants["input_gradient"],
        weight_gradient=constants["weight_gradient"],
        strided=constants["strided"],
        unaligned=constants["unaligned"],
    )


def _described(errors: Floats) -> str:
    share = np.abs(np.expm1(errors))
    return (
        f"{len(errors)} rows, mean |error| {share.mean():.1%}, median {np.median(share):.1%}, "
        f"bias {np.expm1(np.median(errors)):+.1%}"
    )
