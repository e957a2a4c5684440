"""Constants of the cost models: names, units and evidence.

Names are dotted paths. `device.<name>.…` belongs to one device type, `die.<name>.…` to all products
of one die, `architecture.<name>.…` to all devices of one, `family.<name>.…` to one software family,
`pooled.…` stands in for devices and families without their own, `general.…` holds for all. A device
without an entry has its die's, its architecture's or that of all, as its evidence states.

What products of matrices reach is a share of peak that depends on how much power a board has for
each FLOP of its peak. The entries of a die, an architecture and all therefore come with the
`board_j_per_flop` of the boards they were found on, and are scaled for others:
`share * (own / theirs) ** exponent`, up to what is reached where power is no limit. Convolutions on
matrix units are scaled alike from their die, and all.

A device without a rate of products of its own at some width takes its own at the next one. Factors
of software on matmuls hold for the vendors of the devices that they were fitted on.

Library kernels compute on what they stream, in fp32 outside the matrix units: where memory is fast
for these, as on A100, they reach less of it. `dram_share` of a die, and of all, is what memory
alone allows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from wattree.cost.families import SOFTWARE
from wattree.cost.observations import Observation
from wattree.cost.precisions import CORES_ITEM, cores_power
from wattree.cost.software import Software
from wattree.errors import CostError
from wattree.hardware import Device, Precision

#: Board power over 16-bit peak of the boards behind the shares of products at a level. [J/FLOP]
BOARD_ITEM = "board_j_per_flop"
#: What library kernels reach of memory, and what they would where arithmetic is no limit.
_STREAMS, DRAM_ITEM = "library_bandwidth", "dram_share"
#: Item of what profiles find for products in fp32, whichever units compute them.
_PROFILED = "matmul.fp32"
#: Width of products → the next one, whose rate stands in.
_NEXT_WIDTH = {"nvfp4": "fp8", "fp8": "bf16"}
#: Convolutions on matrix units.
_ON_MATRIX_UNITS = ("convolution.bf16", "convolution.tf32")
#: What each launch adds where the host waits for its kernel.
BLOCKING_LAUNCH = "general.blocking_launch_s"

#: Constants that only devices have on which `wattree profile` timed things; `cost.rates` says what
#: is done without them.
PROFILED_ITEMS = (
    "alpha_reduce_s",
    "cached_bandwidth",
    "cached_bytes",
    "dispatch_s",
    "exchange_s",
    "exchange_s_per_byte",
    "fresh_s_per_byte",
    "product_aliased",
    "product_bandwidth",
    "product_ramp",
    "product_row_ramp",
    "slice_rate",
    "update_bandwidth.adamw",
    "update_bandwidth.momentum",
    "update_bandwidth.sgd",
)

#: Constants of all devices that a device may have its own value of, learned from runs on it.
LEARNED_ITEMS = (
    "host_update_rate",
    "memory_efficiency",
    "moe_exchange_factor",
    "moe_host_graphed_s",
    "moe_host_s",
    "network_efficiency",
    "staging_bytes_per_s",
    "straggling_per_doubling",
)

#: By what published trainings take longer, on top of what their steps do.
RUN_SLOWER = "run.slower"

#: Whose loop runs a model, by how little slower than predicted it is.
LOOPS = ("released", "script", "generic")
#: Classes of evidence that have a residual, by quantity: what is known of the kind of model, of the
#: device (by the level at which its constants are found), of the software (and, by whose loop it
#: is, of how much slower steps are), of the model and of what is trained, for language models and
#: for networks; of how much slower whole runs are, of two strategies of one job, of what runs of
#: the user's own do not tell of others, and of memory by the tool that reads it.
RESIDUAL_NAMES = (
    RUN_SLOWER,
    *(f"step_time_s.kind.{kind}" for kind in ("language", "experts", "network")),
    *(
        f"step_time_s.{group}.{known}"
        for group in ("language", "network")
        for known in (
            *(f"level.{level}" for level in ("device", "die", "architecture", "pooled")),
            *(f"software.{known}" for known in ("measured", "unmeasured", "generic")),
            *(f"slower.{loop}" for loop in LOOPS),
            "form.new",
            "size.beyond",
            "alike",
        )
    ),
    *(f"step_time_s.{kind}.model.new" for kind in ("language", "experts", "network")),
    *(
        f"step_time_s.{role}.{kind}"
        for role in ("observed", "observation")
        for kind in ("language", "experts", "network")
    ),
    "step_time_s.pair",
    *(f"memory.peak_bytes.{kind}" for kind in ("allocated", "reserved", "process")),
    *(f"memory.peak_bytes.software.{known}" for known in (*SOFTWARE, "unnamed")),
    "average_power_w.device",
    "average_power_w.pooled",
    *(f"anchored.{quantity}" for quantity in ("step_time_s", "average_power_w", "energy_j")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant.

    Attributes:
        value: In SI units, as the name says.
        evidence: `measured` (read off a measurement), `fitted` (to the measured rows) or
            `pooled` (mean of other devices' fits).
        source: Measurement or fit it comes from.
        spread: Standard deviation of its logarithm, 0 where it was not fitted.
    """

    value: float
    evidence: str
    source: str
    spread: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundConstant:
    """A constant and the level at which the look-up found it.

    Attributes:
        name: Of the constant.
        level: `device`, `die`, `architecture`, `pooled`, `family` or `general`.
        constant: Its value and what that rests on.
    """

    name: str
    level: str
    constant: Constant

    @property
    def evidence(self) -> str:
        """Evidence of a figure that uses this constant: `pooled` where other devices stand in."""
        stands_in = self.level in {"die", "architecture", "pooled"}
        return "pooled" if stands_in else self.constant.evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Remaining prediction errors, measured on rows left out of the fit.

    Attributes:
        spreads: Class of evidence → standard deviation of the logarithm of what is left, of a
            normal distribution that has 80 % where the errors have it.
        rows: What has measured rows, of `language` models and of a `network`: their `software`,
            `vendors`, `devices`, `forms`, `models` (kind and vocabulary) and the `largest` job in
            devices.
        command: That remakes them.
    """

    spreads: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command: str = ""

    @property
    def vendors(self) -> frozenset[str]:
        """Vendors of the devices with measured rows; none where that is not known."""
        groups = (known for name, known in self.rows.items() if name.endswith(".vendors"))
        return frozenset().union(*groups)


def has_rows(vendor: str, vendors: Collection[str]) -> bool:
    """Return whether devices of a vendor have measured rows.

    Args:
        vendor: In any case of letters.
        vendors: That have some; none where that is not known, and all count as such.
    """
    return not vendors or vendor.lower() in vendors


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All constants by name.

    Attributes:
        constants: Name → constant.
        source: Where they were read from.
        left_out: Quantity → source → mean absolute error on that source's measured rows when the
            fit never saw them.
        residuals: What the constants leave of the errors, by class of evidence.
        observations: Of the user's own runs, which the constants were moved by.
    """

    constants: Mapping[str, Constant]
    source: str
    left_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    residuals: Residuals = field(default_factory=Residuals)
    observations: tuple[Observation, ...] = ()

    def device(self, device: Device, item: str) -> float:
        """Return constant `item` of a device type, else of its die, architecture or the default.

        Shares of products (and attention, which consists of them) that are not the device's own
        are scaled for its board's power.
        """
        name = self._name(*self._names(device, item))
        value = self.constants[name].value
        if name.endswith(f".{DRAM_ITEM}"):
            return self._with_arithmetic(value, device)
        on_gpu = device.kind == "gpu" and name.startswith(("die.", "pooled."))
        if item in _ON_MATRIX_UNITS and on_gpu:
            return value * self._of_board(device)
        if name.endswith(CORES_ITEM) and not name.startswith("device."):
            value *= float(cores_power(device) ** self.general("cores_exponent"))
            return min(value, self.general("matmul_most"))
        on_units = item.startswith("matmul.") or item == "attention"
        return self._for_board(value, device, name) if on_units else value

    def own(self, device: Device, item: str, default: float) -> float:
        """Return a constant only if these devices (or dies, architectures) were profiled for it."""
        found = self.found(*device_names(device, item)[:-1])
        return default if found is None else found.constant.value

    def learned(self, device: Device, item: str) -> float:
        """Return a general constant, corrected by runs on a device where there are any."""
        return self.own(device, item, self.general(item))

    def family(self, family: str, item: str) -> float:
        """Return constant `item` of a software family, pooled if it has none of its own."""
        return self.constants[self._name(f"family.{family}.{item}", f"pooled.{item}")].value

    def math_constants(self, software: Software, device: Device) -> tuple[FoundConstant, ...]:
        """Return the factors of software on a device's matmuls, relative to the reference family.

        Software without a constant of its own is like that family, and so is all software on
        devices of a vendor without rows: its libraries and compilers are others. What a job has
        compiled gains what compilers give; a family that always is compiled has that in a constant
        of its own.
        """
        if not has_rows(device.vendor, self.residuals.vendors):
            return ()
        own = self.found(f"family.{software.name}.math")
        pooled = None
        if software.compiled and (own is None or not SOFTWARE[software.name].compiled):
            pooled = self.found("pooled.compiled_math")
        return tuple(each for each in (own, pooled) if each is not None)

    def math(self, software: Software, device: Device) -> float:
        """Return the product of `math_constants`."""
        factors = (each.constant.value for each in self.math_constants(software, device))
        return math.prod(factors, start=self.constants["pooled.math"].value)

    def general(self, item: str) -> float:
        """Return a general constant."""
        return self.constants[self._name(f"general.{item}")].value

    def found(self, *names: str) -> FoundConstant | None:
        """Return the first of `names` that exists, and its level."""
        for name in names:
            if name in self.constants:
                level = name.partition(".")[0]
                return FoundConstant(name=name, level=level, constant=self.constants[name])
        return None

    def evidence(self, *names: str) -> str:
        """Return the evidence of the first of `names` that exists."""
        found = self.found(*names)
        return "datasheet" if found is None else found.evidence

    def found_for_device(self, device: Device, item: str) -> FoundConstant | None:
        """Return the entry of constant `item` of a device type.

        A rate of products at another width is as uncertain as those of other devices besides.
        """
        found = self.found(*self._names(device, item))
        if not (found and item.startswith("matmul.")) or found.name.endswith((item, _PROFILED)):
            return found
        spread = math.hypot(found.constant.spread, self.constants[f"pooled.{item}"].spread)
        return replace(found, constant=replace(found.constant, spread=spread))

    def found_learned(self, device: Device, item: str) -> FoundConstant | None:
        """Return the entry of a general constant, or that of a device from its runs."""
        return self.found(*device_names(device, item)[:-1], f"general.{item}")

    def found_for_family(self, family: str, item: str) -> FoundConstant | None:
        """Return the entry of constant `item` of a software family.

        Those of the reference family, which stand in for others, are of no device: `general`.
        """
        found = self.found(f"family.{family}.{item}", f"pooled.{item}")
        if found is None or found.level == "family":
            return found
        return replace(found, level="general")

    def replaced(self, values: Mapping[str, float]) -> Calibration:
        """Return a copy with some constants replaced."""
        changed = {
            name: replace(self.constants[name], value=value) for name, value in values.items()
        }
        return replace(self, constants={**self.constants, **changed})

    def _names(self, device: Device, item: str) -> tuple[str, ...]:
        """Return the names under which a constant is looked up, those of stand-ins included.

        Products of a width without a rate of the device's own take that of the next width, and
        what steps leave of it.
        """
        names = device_names(device, item)
        kind, _, width = item.rpartition(".")
        if kind not in {"matmul", "training"}:
            return names
        while not any(
            each in self.constants for each in device_names(device, f"matmul.{width}")[:-1]
        ):
            if width not in _NEXT_WIDTH:
                return names
            width = _NEXT_WIDTH[width]
        return (*names[:-1], *device_names(device, f"{kind}.{width}"))

    def _for_board(self, share: float, device: Device, name: str) -> float:
        """Return the share of peak that constant `name`, of other boards, means for a device."""
        level, _, rest = name.partition(".")
        owner = "" if level == "pooled" else f".{rest.partition('.')[0]}"
        theirs = self.constants.get(f"{level}{owner}.{BOARD_ITEM}")
        own = board_j_per_flop(device)
        if level == "device" or theirs is None or own is None:
            return share
        is_attention = name.endswith(".attention")
        pooled = self.general("power_exponent.pooled")
        bound = self.general("power_bound")
        # More power than on the measured board buys less than less power costs, and only boards
        # with little of it lack what they lose.
        near = level == "die" and own < theirs.value
        below = self.general("power_exponent.die") if near else pooled
        factor = (max(own, bound) / max(theirs.value, bound)) ** pooled
        factor *= (min(own, bound) / min(theirs.value, bound)) ** below
        most = self.general("attention_most" if is_attention else "matmul_most")
        return float(min(share * factor, max(share, most)))

    def _of_board(self, device: Device) -> float:
        """Return what a board's power does to its convolutions, over that of `pooled` boards.

        Without a bound: cards whose peak is cut, not their power, clock above their datasheet.
        """
        own = board_j_per_flop(device)
        if own is None:
            return 1.0
        pooled = self.constants[f"pooled.{BOARD_ITEM}"].value
        return float((own / pooled) ** self.general("power_exponent.pooled"))

    def _with_arithmetic(self, share: float, device: Device) -> float:
        """Return the share of memory that streams reach: both limits as times, root of squares."""
        if device.inline_ecc:
            share *= self.general("inline_ecc_share")
        most = device.vector_flop_per_s * self.general("stream_bytes_per_flop")
        most /= device.memory_bandwidth_bytes_per_s
        return 1.0 / math.hypot(1.0 / share, 1.0 / most)

    def _name(self, *names: str) -> str:
        for name in names:
            if name in self.constants:
                return name
        raise CostError(f"{self.source}: no constant {' or '.join(names)}")


def board_j_per_flop(device: Device) -> float | None:
    """Return a board's power over its 16-bit peak; None without such a peak. [J/FLOP]"""
    peaks = device.peak_flop_per_s
    peak = peaks.get(Precision.BF16) or peaks.get(Precision.FP16)
    return device.tdp_w / peak if peak else None


def device_names(device: Device, item: str) -> tuple[str, ...]:
    """Return the names under which a device's constant is looked up, in order."""
    if item == CORES_ITEM:  # profiles, and AMD's architectures, have that of all products in fp32
        own, like = f"device.{device.name}", f"architecture.{device.architecture}"
        of_own, of_like = ((f"{each}.{_PROFILED}", f"{each}.{item}") for each in (own, like))
        return (*of_own, f"die.{device.die}.{item}", *of_like, f"pooled.{item}")
    on_gpu = item == _STREAMS and device.kind == "gpu"
    items = (item, DRAM_ITEM) if on_gpu else (item,)
    of_die = tuple(f"die.{device.die}.{each}" for each in items) if device.die else ()
    of_all = tuple(f"pooled.{each}" for each in reversed(items))
    return (
        f"device.{device.name}.{item}",
        *of_die,
        f"architecture.{device.architecture}.{item}",
        *of_all,
    )
