"""Measured operators as arrays, and what the shipped cost models say of them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from wattree.arrays import Floats
from wattree.cost.calibration import Calibration
from wattree.cost.convolution import (
    Convolution,
    ConvolutionPass,
    ConvolutionRates,
    convolution_time_s,
)
from wattree.cost.convolution_rates import convolution_rates
from wattree.graph import OperatorKind
from wattree.hardware import Device, Precision, load_device

#: Device of the table → of the catalog, where they are called differently.
_DEVICES = {
    "V100-SXM2(DGX-1)": "v100-sxm2-16gb",
    "V100-PCIe-32GB": "v100-pcie-32gb",
    "P100": "p100-pcie-16gb",
    "P100-PCIe-16GB": "p100-pcie-16gb",
    "A100-PCIe-80GB": "a100-pcie-80gb",
    "A100-PCIe-40GB": "a100-pcie-40gb",
    "GTX1080Ti": "gtx-1080-ti",
    "TitanXp": "titan-xp",
    "TitanX-Pascal": "titan-x-pascal",
    "M40": "m40-12gb",
    "T4": "t4",
    "P4": "p4",
}
_PASSES = {
    "fwd": ConvolutionPass.FORWARD,
    "bwd_data": ConvolutionPass.INPUT_GRADIENT,
    "bwd_filter": ConvolutionPass.WEIGHT_GRADIENT,
}
#: P100's fp16 ran in fp32 arithmetic: no precision of ours.
_PRECISIONS = {"fp32": Precision.FP32, "fp16_mixed": Precision.FP16}
#: Host and launch of one call in each source's loops, fitted: part of the measurement, no constant
#: of ours. [s]
LAUNCH_S: Mapping[tuple[str, str], float] = {
    ("deepbench", "fp32"): 16.6e-6,
    ("deepbench", "fp16"): 8e-6,
    ("neusight", "fp32"): 300e-6,
}
#: Channels of the input below which no training step asks for its gradient: images, spectrograms.
_FEW_CHANNELS = 4
#: Source whose library went by heuristics.
_HEURISTIC = "neusight"
#: Rate of matrix units on channels that are no multiple of 8 in cuDNN 7.6 (`--fit`).
_OLD_UNALIGNED = 0.432
_WIDTH_BYTES = {Precision.FP32: 4.0, Precision.FP16: 2.0}
_STREAMED_BYTES = 64e6  # beyond any cache of these devices
_STREAM_KINDS = {
    "ln": ("layer_norm", OperatorKind.NORM),
    "softmax": ("softmax", OperatorKind.SOFTMAX),
}
_TWO_INPUTS = frozenset({"add", "mul", "div", "pow"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolutions:
    """Measured convolutions of one source, device, precision, pass, kernel and stride.

    Attributes:
        traffic_bytes: Operands moved once. [B]
        measured_s: Their times. [s]
    """

    source: str
    device: Device
    precision: Precision
    which: ConvolutionPass
    shape: Convolution
    traffic_bytes: Floats
    measured_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Measured fp32 operators over large tensors of one device.

    Attributes:
        inputs: Tensors read.
        bytes: Of one tensor. [B]
        measured_s: Their times. [s]
    """

    function: str
    kind: OperatorKind
    device: Device
    inputs: int
    bytes: Floats
    measured_s: Floats


_device = cache(load_device)


def read_convolutions(path: Path) -> list[Convolutions]:
    """Return the rows that the models can express, grouped by what is no array."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["gpu"] not in _DEVICES or row["dtype"] not in _PRECISIONS:
                continue
            if row["pass"] == "bwd_data" and int(row["cin"]) < _FEW_CHANNELS:
                continue
            names = ("source", "gpu", "dtype", "pass", "k_h", "k_w", "stride_h", "stride_w")
            groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return [_convolutions(key, rows) for key, rows in sorted(groups.items())]


def _convolutions(key: tuple[str, ...], rows: Sequence[dict[str, str]]) -> Convolutions:
    source, gpu, dtype, which = key[:4]
    k_h, k_w, stride_h, stride_w = map(int, key[4:])

    def column(name: str) -> Floats:
        return np.array([float(row[name]) for row in rows])

    samples, c, k, height, width = map(column, ("batch", "cin", "cout", "in_h", "in_w"))
    out_h = np.floor((height + 2 * column("pad_h") - k_h) / stride_h + 1)
    out_w = np.floor((width + 2 * column("pad_w") - k_w) / stride_w + 1)
    elements = samples * (c * height * width + k * out_h * out_w) + k * c * k_h * k_w
    precision = _PRECISIONS[dtype]
    return Convolutions(
        source=source,
        device=_device(_DEVICES[gpu]),
        precision=precision,
        which=_PASSES[which],
        shape=Convolution(
            positions=samples * out_h * out_w,
            in_channels=c,
            out_channels=k,
            groups=np.ones_like(c),
            taps=k_h * k_w,
            stride_area=float(stride_h * stride_w),
            square=k_h == k_w,
        ),
        traffic_bytes=elements * _WIDTH_BYTES[precision],
        measured_s=column("latency_us") * 1e-6,
    )


def shipped_rates(calibration: Calibration) -> Callable[[Convolutions], ConvolutionRates]:
    """Return what gives the rates of a group's device under a calibration."""

    def rates(group: Convolutions) -> ConvolutionRates:
        tuned = group.source != _HEURISTIC
        found = convolution_rates(group.device, group.precision, calibration, tuned=tuned)
        # Library versions differ here: the shipped constant is that of current ones.
        return replace(found, unaligned=_OLD_UNALIGNED)

    return rates


def predicted_s(group: Convolutions, rates: ConvolutionRates, launch_s: float) -> Floats:
    """Return the times that the model gives a group. [s]"""
    return launch_s + convolution_time_s(group.shape, group.which, rates, group.traffic_bytes)


def read_streams(path: Path) -> list[Streams] | None:
    """Return large elementwise operators, norms and softmax; None without pyarrow."""
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        return None
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in parquet.read_table(path).to_pylist():
        size = 4.0 * row["rows"] * row["cols"]
        if row["gpu"] in _DEVICES and size >= _STREAMED_BYTES:
            found.setdefault((row["op"], row["gpu"]), []).append((size, row["latency_us"] * 1e-6))
    streams = []
    for (name, gpu), pairs in found.items():
        function, kind = _STREAM_KINDS.get(name, (name, OperatorKind.ELEMENTWISE))
        sizes, times = np.array(pairs).T
        streams.append(
            Streams(
                function=function,
                kind=kind,
                device=_device(_DEVICES[gpu]),
                inputs=2 if name in _TWO_INPUTS else 1,
                bytes=sizes,
                measured_s=times,
            )
        )
    return streams
