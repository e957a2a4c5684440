"""Rows of one run under several power limits: the highest limit anchors the others.

Of each source, accelerator, model and batch, the row with the highest limit is the anchor: what it
measured is given, and it counts in no average. The others are predicted from it (`energy.anchors`),
with one set of constants per type of device. Where rows of several optimizers share the highest
limit, each other row has the anchor of its own optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wattree.accounts.interval import interval
from wattree.cost import Calibration
from wattree.cost.device_power import device_mixture
from wattree.energy import under_limit
from wattree.errors import RowError, WattreeError
from wattree.hardware import load_device
from wattree.units import JOULES_PER_KWH
from wattree.validation.cells import Cells
from wattree.validation.clusters import device_name
from wattree.validation.rows import MeasuredRow
from wattree.validation.score import Scored

#: Source → accelerator as printed → catalog name, where the name alone does not say which board.
#: V100 of Zeus: its highest limit is 250 W, the rated power of the PCIe part.
_BOARDS: Mapping[str, Mapping[str, str]] = {"zeus-nsdi23-trace": {"V100": "v100-pcie-16gb"}}


def anchored_device(row: MeasuredRow) -> str | None:
    """Return the catalog name of a row's device; None where the catalog has none so called."""
    board = _BOARDS.get(row.source_id, {}).get(row.accelerator)
    if board is not None:
        return board
    try:
        return device_name(Cells(row))
    except RowError:
        return None


def under_limits(rows: Sequence[MeasuredRow]) -> frozenset[str]:
    """Return the ids of rows whose run was measured under several power limits."""
    limits: dict[tuple[object, ...], set[float]] = {}
    rows = [row for row in rows if row.unreadable is None]
    for row in rows:
        if row.power_limit_w is not None and row.avg_power_w:
            limits.setdefault(_run(row), set()).add(row.power_limit_w)
    several = {run for run, found in limits.items() if len(found) > 1}
    return frozenset(
        row.row_id for row in rows if row.power_limit_w is not None and _run(row) in several
    )


def _run(row: MeasuredRow) -> tuple[object, ...]:
    """Return the key that rows of one run share."""
    return row.source_id, row.accelerator, row.model_name, row.global_batch


def anchors_of(rows: Sequence[MeasuredRow]) -> dict[str, MeasuredRow]:
    """Return row_id → anchor for rows with enough facts; an anchor maps to itself."""
    groups: dict[tuple[object, ...], list[MeasuredRow]] = {}
    for row in rows:
        if row.power_limit_w is not None and row.avg_power_w:
            groups.setdefault(_run(row), []).append(row)
    found = {}
    for mine in groups.values():
        highest_w = max(row.power_limit_w or 0.0 for row in mine)
        highest = [row for row in mine if row.power_limit_w == highest_w]
        for row in mine:
            own = [each for each in highest if each.optimizer == row.optimizer]
            found[row.row_id] = row if row in highest else (own or highest)[0]
    return found


def measured_of(row: MeasuredRow) -> dict[str, float]:
    """Return quantity → measured value of a row, in SI units."""
    found = {}
    if row.avg_power_w:
        found["average_power_w"] = row.avg_power_w
    if row.energy_kwh:
        found["energy_j"] = row.energy_kwh * JOULES_PER_KWH
    if row.samples_per_s and row.global_batch:
        found["step_time_s"] = row.global_batch / row.samples_per_s
    return found


def anchored_scores(rows: Sequence[MeasuredRow], constants: Calibration) -> dict[str, list[Scored]]:
    """Return row_id → its quantities, measured and predicted; an anchor's have no prediction."""
    anchors = anchors_of(rows)
    found: dict[str, list[Scored]] = {}
    for row in rows:
        anchor = anchors.get(row.row_id)
        measured = measured_of(row)
        if anchor is None or not measured:
            found[row.row_id] = [_skipped(row, "names no power limit and average power")]
            continue
        try:
            predicted = {} if anchor is row else _predicted(row, anchor, constants)
        except WattreeError as error:
            found[row.row_id] = [_skipped(row, str(error))]
            continue
        found[row.row_id] = [
            Scored(
                row=row,
                quantity=quantity,
                measured=value,
                predicted=predicted.get(quantity),
                skipped=_reason(anchor is row, quantity in predicted),
                anchor=anchor is row,
                interval=_interval(quantity, predicted.get(quantity), constants),
                evidence="under a limit, anchored",
            )
            for quantity, value in measured.items()
        ]
    return found


def _interval(
    quantity: str, value: float | None, constants: Calibration
) -> tuple[float, float] | None:
    spread = constants.residuals.spreads.get(f"anchored.{quantity}")
    return None if value is None or spread is None else interval(value, spread, spread)


def _predicted(row: MeasuredRow, anchor: MeasuredRow, constants: Calibration) -> dict[str, float]:
    """Return quantity → prediction of a row from its anchor."""
    name = anchored_device(row)
    if name is None:
        return {}
    assert anchor.avg_power_w is not None
    assert anchor.power_limit_w is not None
    assert row.power_limit_w is not None
    run = under_limit(
        device_mixture(load_device(name), constants),
        power_w=np.array([anchor.avg_power_w]),
        anchor_limit_w=np.array([anchor.power_limit_w]),
        limit_w=np.array([row.power_limit_w]),
    )
    given, stretch = measured_of(anchor), float(run.stretch[0])
    found = {"average_power_w": float(run.power_w[0])}
    if "energy_j" in given:
        found["energy_j"] = (
            given["energy_j"] / anchor.avg_power_w * found["average_power_w"] * stretch
        )
    if "step_time_s" in given:
        found["step_time_s"] = given["step_time_s"] * stretch
    return found


def _reason(is_anchor: bool, is_predicted: bool) -> str | None:  # noqa: FBT001 - two facts
    if is_anchor:
        return "anchors the rows with lower limits"
    return None if is_predicted else "its device has no constants, or its anchor lacks the value"


def _skipped(row: MeasuredRow, reason: str) -> Scored:
    return Scored(
        row=row, quantity="average_power_w", measured=None, predicted=None, skipped=reason
    )
