"""Shares of peak of matmuls: from measured devices to dies, and to the general constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.cost.calibration import BOARD_ITEM, Calibration, Constant, board_j_per_flop
from wattree.hardware import load_device

#: Items that the levels above devices share.
PRODUCT_ITEMS = ("matmul.bf16", "matmul.fp8", "matmul.nvfp4")
#: Dies that no table has, with the one whose figures stand for them: the same units of matrices;
#: best 16-bit products 1,769 against 1,745 TFLOP/s (ml-engineering, 2026-08).
LIKE_DIES: Mapping[str, str] = {"gb110": "gb100"}
#: Spread of a device's share around that of another of its die, and of any other.
_OF_DIE, OF_ALL = 0.08, 0.15


def with_levels(calibration: Calibration) -> Calibration:
    """Return `calibration` with the devices' matmul shares averaged per die and over all.

    A die has the geometric mean of the devices of the catalog that are made with it, measured ones
    if there are any; all have that of the measured dies, so that a die of many products counts
    once. The power of the boards is averaged the same way.
    """
    of_dies = _by_die(calibration.constants, "measured")
    others = {
        die: items
        for die, items in _by_die(calibration.constants, "pooled").items()
        if die not in of_dies and die not in LIKE_DIES
    }
    kept = {
        name: constant
        for name, constant in calibration.constants.items()
        if not (name.startswith("die.") and name.endswith((*PRODUCT_ITEMS, BOARD_ITEM)))
    }
    pooled: dict[str, list[float]] = {}
    for die, items in of_dies.items():
        for item, values in items.items():
            kept[f"die.{die}.{item}"] = _mean(values, f"devices of {die.upper()}", _OF_DIE)
            pooled.setdefault(item, []).append(kept[f"die.{die}.{item}"].value)
    for die, items in others.items():
        for item, values in items.items():
            # As uncertain as those devices are, and one more step away.
            spread = float(np.hypot(_OF_DIE, _spread_of(calibration.constants, die, item)))
            mean = _mean(values, f"devices of {die.upper()}", round(spread, 3))
            kept[f"die.{die}.{item}"] = replace(mean, evidence="pooled")
    for item, values in pooled.items():
        kept[f"pooled.{item}"] = _mean(values, "measured dies", OF_ALL)
    for die, other in LIKE_DIES.items():
        kept |= {
            f"die.{die}.{name.removeprefix(f'die.{other}.')}": replace(
                constant, evidence="pooled", source=f"{other.upper()}'s"
            )
            for name, constant in kept.items()
            if name.startswith(f"die.{other}.")
        }
    return replace(calibration, constants=kept)


def _by_die(constants: Mapping[str, Constant], evidence: str) -> dict[str, dict[str, list[float]]]:
    """Return die → item → values of its devices with such evidence."""
    found: dict[str, dict[str, list[float]]] = {}
    boards: dict[str, set[str]] = {}
    for name, constant in sorted(constants.items()):
        level, _, rest = name.partition(".")
        item = next((item for item in PRODUCT_ITEMS if rest.endswith(f".{item}")), None)
        if level != "device" or item is None or constant.evidence != evidence:
            continue
        device = load_device(rest.removesuffix(f".{item}"))
        if not device.die:
            continue
        items = found.setdefault(device.die, {})
        items.setdefault(item, []).append(constant.value)
        power = board_j_per_flop(device)
        if device.name not in boards.setdefault(device.die, set()) and power is not None:
            boards[device.die].add(device.name)
            items.setdefault(BOARD_ITEM, []).append(power)
    return found


def _spread_of(constants: Mapping[str, Constant], die: str, item: str) -> float:
    """Return the mean spread of an item of the devices of a die; 0 for what has none."""
    found = [
        constant.spread or 0.0
        for name, constant in constants.items()
        if name.startswith("device.") and name.endswith(f".{item}")
        if load_device(name.removeprefix("device.").removesuffix(f".{item}")).die == die
    ]
    return float(np.mean(found)) if found else 0.0


def _mean(values: Sequence[float], whose: str, spread: float) -> Constant:
    return Constant(
        value=float(np.exp(np.mean(np.log(values)))),
        evidence="measured",
        source=f"geometric mean of the {whose}",
        spread=spread,
    )
