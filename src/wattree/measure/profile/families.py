"""The families of points and their fits: which constants, by which formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattree.arrays import Floats
from wattree.cost import Calibration, Constant, at_precision, software_family, volume_factor
from wattree.cost.convolution import ConvolutionRates, implicit_matmul_time_s
from wattree.cost.convolution_rates import convolution_rates
from wattree.cost.fresh_memory import fresh_s
from wattree.cost.precisions import precision_class
from wattree.cost.rates import UPDATE_STATES
from wattree.cost.update import update_traffic_bytes
from wattree.errors import RunError
from wattree.hardware import Device, Precision
from wattree.measure.profile.fit import FamilyFit, Parameters, fit_family
from wattree.measure.profile.journal import Journal, Times
from wattree.measure.profile.machine import Machine
from wattree.measure.profile.overlap import processors_taken, slice_rate
from wattree.measure.profile.points import PointFamily, element_bytes

#: Kernels that a linear layer and its ReLU are counted as, forward and backward: both forward, the
#: product's two gradients and the activation's one.
_KERNELS_PER_LAYER = 5.0
_IN_PLACE = "add_in_place"
#: How often a function moves an operand's bytes, out and back: what it reads and what it writes.
_MOVED = {"relu": 2.0, "relu_backward": 3.0, "add": 3.0, _IN_PLACE: 3.0}
#: Streams up to this size find their operands in a cache, as the measurement arranges it. [B]
_WARM_BYTES = 4 << 20
#: What an exchange of all ranks at once leaves to computing at the least.
_LEAST_RATE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Constants of a machine found by measurement.

    Attributes:
        peak_flop_per_s: Precision → best product. [FLOP/s]
        memory_bytes_per_s: Best stream from memory. [B/s]
        bus_bytes_per_s: Best exchange between ranks, by port; None of one rank. [B/s]
        alpha_s: Latency of an exchange; None of one rank. [s]
        copy_bytes_per_s: Host to device. [B/s]
        collate_s: Time of one sample in a batch, without that of its bytes. [s]
        constants: Item → value with what it rests on: `device.…` without the device's name, or a
            whole name.
        fits: By family.
    """

    peak_flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    bus_bytes_per_s: float | None
    alpha_s: float | None
    copy_bytes_per_s: float
    collate_s: float
    constants: Mapping[str, Constant] = field(default_factory=dict)
    fits: tuple[FamilyFit, ...] = ()


def findings_of(journal: Journal, machine: Machine, calibration: Calibration) -> Findings:
    """Return the constants that the measurements of a journal determine.

    Args:
        journal: With one round of all points at least.
        calibration: Constants for what is not measured.

    Raises:
        RunError: A family has no measurement.
    """
    return _Reading(journal, machine, calibration).findings()


class _Reading:
    def __init__(self, journal: Journal, machine: Machine, calibration: Calibration) -> None:
        self.journal, self.machine, self.calibration = journal, machine, calibration
        self.constants: dict[str, Constant] = {}
        self.fits: list[FamilyFit] = []

    def findings(self) -> Findings:
        peaks = self._peaks()
        bandwidth = self._best_stream()
        self._steps()
        self._streams(bandwidth)
        self._updates(bandwidth)
        self._matmuls(peaks, bandwidth)
        bus, alpha = self._exchanges() if self.machine.ranks > 1 else (None, None)
        copy, collate = self._host()
        self._memory()
        return Findings(
            peak_flop_per_s=peaks,
            memory_bytes_per_s=bandwidth,
            bus_bytes_per_s=bus,
            alpha_s=alpha,
            copy_bytes_per_s=copy,
            collate_s=collate,
            constants=self.constants,
            fits=tuple(self.fits),
        )

    # ----------------------------------------------------------------- datasheet-like

    def _peaks(self) -> dict[str, float]:
        """Return the best matmul rate of each precision. [FLOP/s]"""
        best: dict[str, float] = {}
        for each in self._of(PointFamily.PRODUCT):
            rate = 2.0 * float(np.prod(each.point.matmul)) / each.seconds
            best[each.point.precision] = max(best.get(each.point.precision, 0.0), rate)
        return best

    def _best_stream(self) -> float:
        """Return the best bandwidth of memory streams. [B/s]"""
        cold = [e for e in self._of(PointFamily.STREAM) if e.point.size_bytes > _WARM_BYTES]
        return max(_MOVED[e.point.name] * e.point.size_bytes / e.seconds for e in cold)

    # ----------------------------------------------------------------- by family

    def _steps(self) -> None:
        """Derive launch time and step overhead from steps of tiny layers."""
        fit = self._fit(
            "launches (steps of tiny layers)",
            self._of(PointFamily.STEP),
            lambda p, times: p["step"] + p["layer"] * np.array([t.point.inner for t in times]),
            {"step": 1e-4, "layer": 5e-5},
        )
        item = "family.pytorch.module_launch_s" if self.machine.accelerator else "dispatch_s"
        self._record(item, fit, "layer", fit.values["layer"] / _KERNELS_PER_LAYER)
        self._record("family.pytorch.step_overhead_s", fit, "step", fit.values["step"])
        self._state("family.pytorch.math", 1.0, "products were measured in this software")
        self._state("family.pytorch.elementwise", 1.0, "streams were measured in this software")

    def _streams(self, bandwidth: float) -> None:
        streams = self._of(PointFamily.STREAM)
        in_place = [
            e for e in streams if e.point.name == _IN_PLACE and e.point.size_bytes > _WARM_BYTES
        ]
        fit = self._fit(
            "sums in place",
            in_place,
            lambda p, times: _moved(times) / p["rate"],
            {"rate": bandwidth},
        )
        self._record("general.memory_efficiency", fit, "rate", fit.values["rate"] / bandwidth)
        others = [e for e in streams if e.point.name != _IN_PLACE]

        def stream_s(p: Parameters, times: Sequence[Times]) -> Floats:
            size = np.array([float(t.point.size_bytes) for t in times])
            rate = np.where(size > _WARM_BYTES, p["stream"], p["cached"])
            return _moved(times) / rate + fresh_s(size, p["fresh"])

        start = {"stream": bandwidth / 2, "cached": 2 * bandwidth, "fresh": 3e-10}
        fit = self._fit("elementwise operators", others, stream_s, start)
        self._record("library_bandwidth", fit, "stream", fit.values["stream"] / bandwidth)
        if self.machine.accelerator:
            return
        warm = [e for e in streams if e.point.size_bytes <= _WARM_BYTES]
        self._record("cached_bandwidth", fit, "cached", fit.values["cached"] / bandwidth)
        self._record("cached_bytes", fit, "cached", float(_moved(warm).max()))
        self._record("fresh_s_per_byte", fit, "fresh", fit.values["fresh"])

    def _updates(self, bandwidth: float) -> None:
        """Record the achieved fraction of the optimizer traffic that the model counts."""
        software = at_precision(software_family("pytorch"), Precision.FP32)

        def counted(times: Sequence[Times]) -> Floats:
            elements = np.array([t.point.size_bytes / 4.0 for t in times])
            states = [UPDATE_STATES[t.point.name] for t in times]
            return np.array(
                [
                    float(update_traffic_bytes(np.array(count), state, software))
                    for count, state in zip(elements, states, strict=True)
                ]
            )

        fit = self._fit(
            "updates of parameters",
            self._of(PointFamily.UPDATE),
            lambda p, times: counted(times) / np.array([p[t.point.name] for t in times]),
            dict.fromkeys(UPDATE_STATES, bandwidth),
        )
        for name in UPDATE_STATES:
            self._record(f"update_bandwidth.{name}", fit, name, fit.values[name] / bandwidth)

    def _matmuls(self, peaks: Mapping[str, float], bandwidth: float) -> None:
        times = self._of(PointFamily.PRODUCT)
        precisions = list(dict.fromkeys(t.point.precision for t in times))
        device = _device(self.machine, peaks, bandwidth)
        rates = {
            each: convolution_rates(device, Precision(each), self._trial()) for each in precisions
        }
        start = {f"share.{each}": 0.8 for each in precisions}
        if not self.machine.accelerator:
            start |= {"ramp": 4.0, "rows": 4.0, "memory": 0.5, "aliased": 0.95}

        def matmul_s(p: Parameters, times: Sequence[Times]) -> Floats:
            found = np.empty(len(times))
            for precision in precisions:
                mine = [i for i, t in enumerate(times) if t.point.precision == precision]
                if mine:
                    tried = _tried(rates[precision], p, precision, bandwidth)
                    shapes = np.array([times[i].point.matmul for i in mine], dtype=float).T
                    m, n, k = shapes
                    found[mine] = implicit_matmul_time_s(
                        m=m, n=n, k=k, groups=np.ones_like(m), rates=tried
                    )
            return found

        fit = self._fit("matmuls", times, matmul_s, start)
        for precision in precisions:
            share = fit.values[f"share.{precision}"]
            width = "fp32" if precision == "fp64" else precision
            for item in _matmul_items(width):
                if item not in self.constants:
                    self._record(item, fit, f"share.{precision}", share)
        if not self.machine.accelerator:
            self._record("product_ramp", fit, "ramp", fit.values["ramp"])
            self._record("product_row_ramp", fit, "rows", fit.values["rows"])
            self._record("product_bandwidth", fit, "memory", fit.values["memory"])
            self._record("product_aliased", fit, "aliased", min(fit.values["aliased"], 1.0))

    def _exchanges(self) -> tuple[float, float]:
        """Return the port's best bandwidth and latency; record the efficiency of exchanges."""
        times = self._of(PointFamily.COLLECTIVE)
        best = max(_sent(t, self.machine.ranks) / t.seconds for t in times)

        own = "alpha" if self.machine.accelerator else "alpha_reduce"

        def exchange_s(p: Parameters, times: Sequence[Times]) -> Floats:
            sent = np.array([_sent(t, self.machine.ranks) for t in times])
            reduces = np.array([t.point.name == "all_reduce" for t in times])
            return np.where(reduces, p[own] + sent / p["reduce"], p["alpha"] + sent / p["gather"])

        start = {"alpha": 2e-4, "gather": best / 2, "reduce": best / 2} | {own: 2e-4}
        fit = self._fit("exchanges between ranks", times, exchange_s, start)
        self._record("alpha_s", fit, "alpha", fit.values["alpha"])
        if not self.machine.accelerator:  # a library's own; the others go between pairs
            self._record("alpha_reduce_s", fit, own, fit.values[own])
        self._record("bus_efficiency", fit, "gather", fit.values["gather"] / best)
        self._record("bus_reduce_efficiency", fit, "reduce", fit.values["reduce"] / best)
        self._overlap()
        return best, fit.values["alpha"]

    def _overlap(self) -> None:
        """Record the speed of concurrent computing and communication."""
        times = self._of(PointFamily.OVERLAP)
        largest = max(each.point.size_bytes for each in times)
        found = {e.point.name: e for e in times if e.point.size_bytes == largest}
        if len(found) < 3:
            return
        matmul_s, exchange_s, both_s = (
            found[name].seconds for name in ("product", "exchange", "both")
        )
        # Both at rate r until the shorter is done, the rest of the longer alone.
        overlapped_s = both_s - abs(matmul_s - exchange_s)
        rate = min(matmul_s, exchange_s) / max(overlapped_s, 1e-9)
        rate = min(max(rate, _LEAST_RATE), 1.0)
        source = (
            f"{matmul_s * 1e3:.2f} ms of products and {exchange_s * 1e3:.2f} ms of exchange took "
            f"{both_s * 1e3:.2f} ms at once"
        )
        for item in ("general.overlap_compute_rate", "general.overlap_communication_rate"):
            self._state(item, rate, source, evidence="measured")
        if self.machine.accelerator:
            return
        if (taken := processors_taken(self.journal, self.machine.ranks)) is not None:
            source = f"processor time of gathers of {taken.points} sizes that overlap matmuls"
            self._state("exchange_s", taken.call_s, source, evidence="measured")
            self._state("exchange_s_per_byte", taken.s_per_byte, source, evidence="measured")
        if (sliced := slice_rate(self.journal)) is not None:
            source = "products with slices of weights over those with the whole"
            self._state("slice_rate", sliced, source, evidence="measured")

    def _host(self) -> tuple[float, float]:
        """Return the rate of copies to the device and the time of a sample in a batch."""
        fit = self._fit(
            "batches of samples",
            self._of(PointFamily.COLLATE),
            lambda p, times: np.array(
                [t.point.rows * (p["sample"] + 4.0 * t.point.inner / p["rate"]) for t in times]
            ),
            {"sample": 1e-6, "rate": 1e10},
        )
        copies = [t.point.size_bytes / t.seconds for t in self.journal.measured(PointFamily.COPY)]
        return (max(copies) if copies else fit.values["rate"]), fit.values["sample"]

    def _memory(self) -> None:
        """Record the process memory besides tensors; GPUs use the built-in value."""
        if self.machine.accelerator or not self.journal.resident_bytes:
            return
        held = self.journal.resident_bytes
        self._state(
            "memory_context_bytes", held, "resident after start of a rank", evidence="measured"
        )
        self._state("general.memory_reserved_bytes", 0.0, "nothing is reserved on a CPU")

    # ----------------------------------------------------------------- parts

    def _of(self, kind: PointFamily) -> list[Times]:
        found = self.journal.measured(kind)
        if not found:
            raise RunError(str(self.journal.path), [f"holds no measurement of kind '{kind}'"])
        return found

    def _fit(
        self, family: str, times: Sequence[Times], model: object, start: Parameters
    ) -> FamilyFit:
        fit = fit_family(family, times, model, start)  # type: ignore[arg-type]
        self.fits.append(fit)
        return fit

    def _record(self, item: str, fit: FamilyFit, parameter: str, value: float) -> None:
        """Record a fitted constant."""
        held = "" if fit.held_out is None else f", held-out error {fit.held_out:.1%}"
        self.constants[item] = Constant(
            value=value,
            evidence="fitted",
            source=f"{self._origin}: {fit.family}, {fit.points} points{held}",
            spread=fit.spreads.get(parameter, 0.0),
        )

    def _state(self, item: str, value: float, why: str, *, evidence: str = "chosen") -> None:
        self.constants[item] = Constant(
            value=value, evidence=evidence, source=f"{self._origin}: {why}"
        )

    @property
    def _origin(self) -> str:
        return f"wattree profile, {self.machine.title}, {self.machine.software}"

    def _trial(self) -> Calibration:
        """Return the calibration with the constants found so far, enough to price matmuls."""
        name = self.machine.device
        known = {
            (item if "." in item else f"device.{name}.{item}"): constant
            for item, constant in self.constants.items()
        }
        if not self.machine.accelerator:
            ramp = Constant(value=1.0, evidence="fitted", source="start of a fit")
            known[f"device.{name}.product_ramp"] = ramp
        return replace(self.calibration, constants={**self.calibration.constants, **known})


def _moved(times: Sequence[Times]) -> Floats:
    return np.array([_MOVED[t.point.name] * t.point.size_bytes for t in times])


def _sent(times: Times, ranks: int) -> float:
    """Return the bytes that a port sends in a collective. [B]"""
    return float(volume_factor(times.point.name, ranks)) * times.point.size_bytes


def _tried(
    rates: ConvolutionRates, p: Parameters, precision: str, bandwidth: float
) -> ConvolutionRates:
    """Return the rates with the parameters of a trial."""
    size = float(element_bytes(precision))
    found = replace(rates, matmul=p[f"share.{precision}"], element_bytes=size)
    if "ramp" not in p:
        return found
    # Above 1 nothing is aliased: the fit is to feel no edge there.
    kernels = replace(
        rates.kernels, ramp=p["ramp"], row_ramp=p["rows"], aliased=min(p["aliased"], 1.0)
    )
    return replace(found, kernels=kernels, memory_bytes_per_s=p["memory"] * bandwidth)


def _matmul_items(precision: str) -> tuple[str, ...]:
    """Return the constants of matmul efficiency of a precision."""
    width = {"fp32": "fp32", "tf32": "tf32"}.get(precision, "bf16")
    return (f"convolution.{width}", f"matmul.{precision_class(Precision(precision))}")


def _device(machine: Machine, peaks: Mapping[str, float], bandwidth: float) -> Device:
    """Return the device, as far as matmuls need it: from the catalog if it is there."""
    if machine.in_catalog:
        from wattree.hardware import load_device

        return load_device(machine.device)
    best = max(peaks.get("fp32", 0.0), 1e9)
    return Device(
        name=machine.device,
        title=machine.title,
        vendor=machine.vendor,
        kind=machine.kind,
        architecture=machine.architecture,
        memory_bytes=machine.memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        peak_flop_per_s={Precision(name): peak for name, peak in peaks.items()},
        vector_flop_per_s=best,
        compute_units=machine.threads,
        host_link_bytes_per_s=bandwidth,
        tdp_w=2.0,
        idle_w=1.0,
    )
