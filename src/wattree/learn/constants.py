"""The constants of each class, and how they change when the time of the class changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from wattree.accounts import constant_classes as names
from wattree.cost import Calibration, Constant
from wattree.cost.attention_rates import attention_share
from wattree.cost.calibration import BLOCKING_LAUNCH, LEARNED_ITEMS
from wattree.cost.observations import COMPUTING, RESIDUAL, STEP
from wattree.cost.precisions import precision_class
from wattree.hardware import Device, Precision
from wattree.lowering.setting import Setting

#: Spread of a constant that a run says nothing of, though it moved; files hold less than 5.
_WIDEST = 4.0
#: Class → what people call it, where that is another word.
_WORDS = {
    RESIDUAL: "all alike",
    STEP: "all of the step",
    COMPUTING: "all of computing",
    # By the headings of `simulate`, where their time is.
    names.PRODUCTS: "matmuls",
    names.HOST: "launches (in compute)",
    names.OVERHEAD: "host overhead",
}
#: Class → items of a device whose rates fall as its time grows; `{width}` is that of products,
#: `{units}` that of a library's kernels.
_RATES: Mapping[str, tuple[str, ...]] = {
    names.PRODUCTS: ("training.{width}",),
    names.ATTENTION: ("attention",),
    names.CONVOLUTION: ("convolution.{units}",),
    names.MEMORY: ("memory_efficiency", "library_bandwidth"),
    names.LINKS: ("bus_efficiency", "bus_reduce_efficiency"),
    names.NETWORK: ("network_efficiency",),
    names.HOST_UPDATES: ("host_update_rate",),
    names.LOADING: ("staging_bytes_per_s",),
}
#: The same of items that only profiled devices have.
_OWN_RATES: Mapping[str, tuple[str, ...]] = {
    names.PRODUCTS: ("product_bandwidth",),
    names.MEMORY: (
        "cached_bandwidth",
        "update_bandwidth.sgd",
        "update_bandwidth.momentum",
        "update_bandwidth.adamw",
    ),
}
#: Class → items of a device that grow with its time; `{routing}` is that of its software.
_TIMES: Mapping[str, tuple[str, ...]] = {
    names.EXPERTS: ("moe_exchange_factor",),
    names.ROUTING: ("{routing}",),
    names.STRAGGLING: ("straggling_per_doubling",),
}
_OWN_TIMES: Mapping[str, tuple[str, ...]] = {
    names.HOST: ("dispatch_s",),
    names.LINKS: ("alpha_s", "alpha_reduce_s"),
    names.MEMORY: ("fresh_s_per_byte",),
}
#: Classes whose time is a multiple of another's, which all that a run errs by moves already.
_FACTORS = (names.EXPERTS, names.STRAGGLING)


def class_words(name: str) -> str:
    """Return what people call a class."""
    return _WORDS.get(name, name.replace("_", " "))


def moved_constants(
    base: Calibration,
    setting: Setting,
    *,
    moves: Mapping[str, float],
    spreads: Mapping[str, float],
    source: str,
) -> dict[str, Constant]:
    """Return the constants of a device and its software after their times moved.

    Args:
        setting: Of a run: its device, software and precision.
        moves: Class → how far the logarithm of its time moves; `residual` moves all alike.
        spreads: Class → standard deviation that is left.
    """
    found: dict[str, Constant] = {}
    alike = moves.get(RESIDUAL, 0.0) + moves.get(STEP, 0.0)
    device, software = setting.job.cluster.pools[0].node.device, setting.software.name
    moves = _of_library(moves, base, setting, device)
    for name in {*_RATES, *_TIMES, names.OVERHEAD, names.HOST}:
        own = moves.get(name, 0.0) + (0.0 if name in _FACTORS else alike)
        own += moves.get(COMPUTING, 0.0) if name in names.COMPUTING_CLASSES else 0.0
        if abs(own) < 1e-12:
            continue
        for place, sign in _places(base, setting, device, name):
            value, old = _value(base, device, software, place)
            found[place] = replace(
                old,
                value=value * math.exp(sign * own),
                evidence="fitted",
                spread=min(spreads.get(name, old.spread), _WIDEST),
                source=f"{source}: times x {math.exp(own):.4g}",
            )
    return found


def _of_library(
    moves: Mapping[str, float], base: Calibration, setting: Setting, device: Device
) -> Mapping[str, float]:
    """Return the moves by constant: libraries run matmuls as convolutions."""
    profiled = base.own(device, "product_ramp", -1.0) >= 0
    if not (setting.software.library_kernels or profiled):
        return moves
    both = (names.PRODUCTS, names.CONVOLUTION)
    most = max((moves.get(name, 0.0) for name in both), key=abs)
    return {**moves, names.PRODUCTS: most, names.CONVOLUTION: most}


def _places(
    base: Calibration, setting: Setting, device: Device, name: str
) -> Iterator[tuple[str, float]]:
    """Yield the names of a class's constants, with the sign of their dependence on its time."""
    if name == names.LOADING and not setting.has_staging:
        return
    width = precision_class(setting.precision)
    units = "tf32" if setting.precision is Precision.TF32 else width
    routing = setting.software.routing_item(device.kind)
    for items, own, sign in ((_RATES, _OWN_RATES, -1.0), (_TIMES, _OWN_TIMES, 1.0)):
        for item in items.get(name, ()):
            place = item.format(width=width, units=units, routing=routing)
            if base.found_for_device(device, place) or place in LEARNED_ITEMS:
                yield f"device.{device.name}.{place}", sign
        for item in own.get(name, ()):
            if base.own(device, item, 0.0) > 0:
                yield f"device.{device.name}.{item}", sign
    if name == names.HOST and setting.software.launch_blocking:
        yield BLOCKING_LAUNCH, 1.0
    software = setting.software
    of_host = {
        names.HOST: software.launch_item(device.kind),
        names.OVERHEAD: software.overhead_item,
    }
    if (own_item := of_host.get(name)) is not None:
        yield f"family.{software.name}.{own_item}", 1.0


def _value(base: Calibration, device: Device, software: str, place: str) -> tuple[float, Constant]:
    """Return the value of a constant before it moves, for this exact device, and its source."""
    scope, _, rest = place.partition(".")
    if place == BLOCKING_LAUNCH:
        return base.constants[place].value, base.constants[place]
    if scope == "family":
        item = rest.removeprefix(f"{software}.")
        held = base.found(f"family.{software}.{item}", f"pooled.{item}")
        assert held is not None
        return base.family(software, item), held.constant
    item = rest.removeprefix(f"{device.name}.")
    if item in LEARNED_ITEMS:
        general = base.found_learned(device, item)
        assert general is not None
        return base.learned(device, item), general.constant
    held = base.found_for_device(device, item)
    assert held is not None
    is_attention = item in _RATES[names.ATTENTION]
    value = attention_share(device, base) if is_attention else base.device(device, item)
    return value, held.constant
