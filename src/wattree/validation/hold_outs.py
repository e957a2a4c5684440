"""Errors on rows excluded from the fit: by source, device, scale, model family, and at random.

Each hold-out solves the linearised fit again without its rows, with the Jacobian of the full fit
(the model is close to linear in logarithms), and estimates its rows anew with what comes out. A
device goes with all that was learned on it: its constants, those of its die and architecture where
no other measured device shares them, and their priors; its rows are estimated through the look-up
that ships, as those of a device without measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Flags, Floats
from wattree.cost import Calibration
from wattree.cost.products import OF_ALL, with_levels
from wattree.hardware import Device, load_device
from wattree.validation.calibrate import CalibrationFit, FitRow, solve_without

#: Devices of the rows that are fitted, and of those that are held out, where scale is.
_FEW, _MANY = 64, 128
_FOLDS = 5
_SEED = 18
#: Kind of hold-out whose rows have others of their source in the fit.
RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldOut:
    """Rows that are excluded from a fit.

    Attributes:
        kind: `source`, `device`, `scale`, `model`, `model family` or `random`.
        name: Which one.
        seen, held: Rows that are fitted, and rows that are predicted.
        device: That is unknown to the fit; None unless `kind` is.
    """

    kind: str
    name: str
    seen: Flags
    held: Flags
    device: Device | None = None


def hold_outs(rows: Sequence[FitRow]) -> Iterator[HoldOut]:
    """Yield the hold-outs in turn."""
    for kind, labels in _labels(rows).items():
        for name in sorted(set(labels)):
            held = np.array([label == name for label in labels])
            if held.all():
                continue  # nothing to fit to
            device = load_device(name) if kind == "device" else None
            yield HoldOut(kind=kind, name=name, seen=~held, held=held, device=device)
    counts = np.array([row.expressed.job.cluster.devices for row in rows])
    seen, held = counts <= _FEW, counts >= _MANY
    if seen.any() and held.any():
        name = f"{_MANY} devices and more"
        yield HoldOut(kind="scale", name=name, seen=seen, held=held)


def _labels(rows: Sequence[FitRow]) -> dict[str, list[str]]:
    keys = sorted({row.key for row in rows}, key=repr)
    folds = np.random.default_rng(_SEED).permutation(len(keys)) % _FOLDS
    fold = dict(zip(keys, folds.tolist(), strict=True))  # repeats of a configuration together
    return {
        "source": [row.expressed.row.source_id for row in rows],
        "device": [row.expressed.job.cluster.node.device.name for row in rows],
        "model": [str(row.expressed.row.model_name) for row in rows],
        "model family": [_family(row) for row in rows],
        RANDOM: [f"fold {fold[row.key] + 1}" for row in rows],
    }


def _family(row: FitRow) -> str:
    return str(row.expressed.row.model_family or row.expressed.row.model_name)


def calibration_without(case: HoldOut, rows: Sequence[FitRow], full: CalibrationFit) -> Calibration:
    """Return what a fit finds that has not seen the rows, or the device, of a hold-out."""
    gone = _learned_on(case.device, rows, full) if case.device else frozenset()
    calibration = solve_without(rows, full, seen=case.seen, gone=gone)
    return _without(calibration, gone) if gone else calibration


def _learned_on(device: Device, rows: Sequence[FitRow], full: CalibrationFit) -> frozenset[str]:
    """Return the constants that are fitted on one device alone."""
    others = [row.expressed.job.cluster.node.device for row in rows]
    others += _with_matmuls(full.calibration, "measured")
    others = [other for other in others if other.name != device.name]
    scopes = [f"device.{device.name}."]
    if all(other.die != device.die for other in others):
        scopes.append(f"die.{device.die}.")
        # What best matmuls say of its siblings was weighed against what its own say of the die.
        weighed = _with_matmuls(full.calibration, "pooled")
        scopes += [f"device.{each.name}.matmul." for each in weighed if each.die == device.die]
    if all(other.architecture != device.architecture for other in others):
        scopes.append(f"architecture.{device.architecture}.")
    return frozenset(name for name in full.calibration.constants if name.startswith(tuple(scopes)))


def _with_matmuls(calibration: Calibration, evidence: str) -> list[Device]:
    """Return the devices with constants of matmuls on matrix units that have such evidence."""
    names = {
        name.removeprefix("device.").partition(".matmul.")[0]
        for name, constant in calibration.constants.items()
        if name.startswith("device.") and ".matmul." in name and constant.evidence == evidence
        if not name.endswith(".fp32")
    }
    return [load_device(name) for name in sorted(names)]


def _without(calibration: Calibration, gone: frozenset[str]) -> Calibration:
    kept = {name: each for name, each in calibration.constants.items() if name not in gone}
    return pooled_means(with_levels(replace(calibration, constants=kept)))


#: Items of which devices without a constant of their own take the mean of the dies that have one.
_MEANS = ("attention",)
#: Values that tell anything of their spread.
_LEAST_VALUES = 2


def pooled_means(calibration: Calibration) -> Calibration:
    """Return `calibration` with the means of what some dies have, for all others."""
    table = dict(calibration.constants)
    for item in _MEANS:
        own = [
            each.value
            for name, each in table.items()
            if name.startswith("die.") and name.endswith(f".{item}") and each.evidence != "pooled"
        ]
        if own:
            table[f"pooled.{item}"] = replace(
                table[f"pooled.{item}"],
                value=float(np.exp(np.mean(np.log(own)))),
                spread=_spread_of_another(np.log(own)),
            )
    return replace(calibration, constants=table)


def _spread_of_another(logs: Floats) -> float:
    """Return the spread of one more value around their mean, which is as unsure as it is."""
    count = len(logs)
    if count < _LEAST_VALUES:
        return OF_ALL
    return float(np.std(logs, ddof=1)) * math.sqrt(1.0 + 1.0 / count)
