"""Fit the constants to measured rows, hold rows out in turn, and write the calibration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from wattree.accounts.job_facts import facts_of
from wattree.arrays import Floats
from wattree.cost import Calibration, Constant, constant_lines, load_calibration, residual_lines
from wattree.cost.products import with_levels
from wattree.errors import JobError
from wattree.files import write_atomic
from wattree.predict import Prediction
from wattree.trace import IntervalPart
from wattree.validation.calibrate import CalibrationFit, FitRow, fit, linearized
from wattree.validation.coverage import with_residuals
from wattree.validation.hold_outs import pooled_means
from wattree.validation.left_out import FittedRows, LeftOutError, left_out_errors
from wattree.validation.memory_fit import (
    MemoryRow,
    fit_memory,
    memory_bytes,
)
from wattree.validation.outcome import NOTHING, Validation, hold_out_key
from wattree.validation.priors import FITTED, FITTED_NETWORKS, Prior
from wattree.validation.rows import MeasuredRow
from wattree.validation.runner import Progress, Runner, memory_row
from wattree.validation.score import ALL_SOURCES

#: Rows of language models fit the first, those of other networks the second: no constant is fitted
#: to rows of both, so that neither moves the other's predictions.
_GROUPS: Mapping[bool, Mapping[str, Prior]] = {False: FITTED, True: FITTED_NETWORKS}


def fitted(runner: Runner, output: Path) -> Validation:
    """Fit, leave sources out, write the calibration, and return the rows scored with it."""
    shipped, by_group = load_calibration(), _fit_rows(runner)
    _refuse_few(by_group)
    constants = _with_priors(shipped, [_GROUPS[is_network] for is_network in by_group])
    predictions = runner.predictions(constants)
    results: list[CalibrationFit] = []
    everything: list[LeftOutError] = []
    left_out = {quantity: dict(errors) for quantity, errors in shipped.left_out.items()}
    for is_network, rows in by_group.items():
        _simulated(rows, predictions, constants)
        result = fit(rows, constants, _GROUPS[is_network], progress=runner.progress)
        constants = result.calibration
        results.append(result)
        seen = np.exp(result.logs) / np.array([row.measured_s for row in rows]) - 1.0
        unseen = list(left_out_errors(_fitted_rows(rows, result, predictions), runner.progress))
        everything += unseen
        held: dict[str, dict[str, list[float]]] = {}
        for each in unseen:
            of_kind = held.setdefault(each.hold_out, {})
            of_kind.setdefault(each.group, []).append(float(np.expm1(each.error)))
        left_out["step_time_s"] = left_out.get("step_time_s", {}) | _means(held["source"])
        for kind, errors in {"": {NOTHING: seen}, **held}.items():
            left_out[hold_out_key(kind, is_network=is_network)] = _means(errors) | {
                f"{ALL_SOURCES}, {name}": float(average(np.abs(_joined(errors))))
                for name, average in (("mean", np.mean), ("median", np.median))
            }
    memory, memory_errors = _memory_fit(runner, predictions, constants)
    constants = with_residuals(
        _recorded(memory, results),
        everything,
        _memory_software(runner, _memory_rows(runner, predictions, constants)),
        command="wattree validate --fit",
    )
    left_out.setdefault("peak_memory_bytes", {}).update(memory_errors)
    write_calibration(output, constants, left_out)
    return runner.validation(constants, left_out)


def _simulated(
    rows: Sequence[FitRow], predictions: Mapping[str, Prediction | str], constants: Calibration
) -> list[FitRow]:
    """Give rows the ratio of their simulated to their estimated time; return those that have it."""
    found = []
    for row in rows:
        prediction = predictions[row.expressed.row.row_id]
        if isinstance(prediction, Prediction):
            row.ratio = prediction.result.step_time_s / row.estimate_s(constants)
            found.append(row)
    return found


def _fitted_rows(
    rows: Sequence[FitRow], full: CalibrationFit, predictions: Mapping[str, Prediction | str]
) -> FittedRows:
    """Return the rows of a fit with what their predictions rest on."""
    parts: list[Mapping[str, IntervalPart]] = []
    facts = []
    for row in rows:
        prediction, cluster = predictions[row.expressed.row.row_id], row.expressed.job.cluster
        parts.append(prediction.result.interval_parts if isinstance(prediction, Prediction) else {})
        setting = row.setting(full.calibration)
        facts.append(facts_of(setting, cluster.node.device, cluster.devices))
    return FittedRows(rows=rows, full=full, parts=parts, facts=facts)


def _fit_rows(runner: Runner) -> dict[bool, list[FitRow]]:
    """Return whether they are networks → the rows to fit."""
    groups: dict[bool, list[FitRow]] = {}
    for entry in runner.entries:
        if (
            entry.expressed is not None
            and entry.measurement.value is not None
            and entry.measurement.quantity == "step_time_s"
            and entry.row.core
        ):
            row = FitRow(
                expressed=entry.expressed,
                measured_s=entry.measurement.value,
                setting=lambda c, job=entry.expressed.job: runner.setting(job, c),  # type: ignore[misc]
            )
            groups.setdefault(entry.expressed.job.model.transformer is None, []).append(row)
    return groups


def _refuse_few(groups: Mapping[bool, Sequence[FitRow]]) -> None:
    """Raise an error if there are fewer rows than constants to fit."""
    for is_network, rows in groups.items() or [(False, [])]:
        if len(rows) < len(_GROUPS[is_network]):
            kind = "networks" if is_network else "language models"
            found = f"found {len(rows)} core rows of step time of {kind}, expected at least"
            many = len(_GROUPS[is_network])
            message = f"{found} {many}: as many as there are constants; name more row files"
            raise JobError("--fit", [message])


def _with_priors(constants: Calibration, groups: Sequence[Mapping[str, Prior]]) -> Calibration:
    """Return `constants` with what is fitted marked so; what they lack starts at its prior."""
    return replace(
        constants,
        constants={
            **constants.constants,
            **{
                name: Constant(
                    value=constants.constants[name].value
                    if name in constants.constants
                    else prior.value,
                    evidence="fitted",
                    source=prior.source,
                    spread=prior.spread,
                )
                for priors in groups
                for name, prior in priors.items()
            },
        },
    )


def _joined(errors: Mapping[str, Sequence[float]]) -> Floats:
    return np.concatenate([np.asarray(each) for each in errors.values()])


def _recorded(constants: Calibration, results: Sequence[CalibrationFit]) -> Calibration:
    """Add the posterior spread to each fitted constant, and means where devices lack one."""
    spreads = {name: spread for result in results for name, spread in result.spread.items()}
    table = {
        name: replace(constant, spread=spreads.get(name, constant.spread))
        for name, constant in constants.constants.items()
    }
    return pooled_means(with_levels(replace(constants, constants=table)))


def _memory_software(runner: Runner, rows: Sequence[MemoryRow]) -> list[tuple[str, MemoryRow]]:
    """Return the rows of memory, each with its software."""
    software = {e.row.row_id: e.expressed.job.software for e in runner.entries if e.expressed}
    return [(software[row.row.row_id], row) for row in rows]


def _memory_rows(
    runner: Runner, predictions: Mapping[str, Prediction | str], constants: Calibration
) -> list[MemoryRow]:
    rows = []
    for entry in runner.entries:
        prediction = predictions.get(entry.row.row_id)
        is_memory = entry.measurement.quantity == "peak_memory_bytes" and entry.row.core
        if is_memory and isinstance(prediction, Prediction):
            rows.append(memory_row(entry, prediction, constants))
    return rows


def _memory_fit(
    runner: Runner, predictions: Mapping[str, Prediction | str], constants: Calibration
) -> tuple[Calibration, dict[str, float]]:
    rows = _memory_rows(runner, predictions, constants)
    if not rows:
        return constants, {}
    errors: dict[str, list[float]] = {}
    for source in sorted({row.row.source_id for row in rows}):
        others = [row for row in rows if row.row.source_id != source]
        without = fit_memory(others, constants) if others else constants
        errors[source] = [
            abs(memory_bytes(row, without) / row.measured_bytes - 1)
            for row in rows
            if row.row.source_id == source
        ]
    return fit_memory(rows, constants), _means(errors)


def _means(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {source: float(np.mean(np.abs(values))) for source, values in errors.items()}


def fitted_groups(
    rows: Sequence[MeasuredRow], constants: Calibration, *, progress: Progress
) -> Iterator[FittedRows]:
    """Yield the rows that each fit is made of, as `constants` predict them.

    Args:
        rows: Measured rows.
        constants: That were fitted to them.
        progress: Called with (stage, done, total).
    """
    runner = Runner(rows, progress)
    predictions = runner.predictions(constants)
    for is_network, members in _fit_rows(runner).items():
        found = _simulated(members, predictions, constants)
        priors = {n: p for n, p in _GROUPS[is_network].items() if n in constants.constants}
        start = np.full((len(found), len(priors)), np.nan)
        logs, jacobian = linearized(found, constants, start, tuple(priors), progress=progress)
        full = CalibrationFit(
            calibration=constants, spread={}, logs=logs, jacobian=jacobian, priors=priors
        )
        yield _fitted_rows(found, full, predictions)


def memory_rows(
    rows: Sequence[MeasuredRow], constants: Calibration, *, progress: Progress
) -> list[tuple[str, MemoryRow]]:
    """Return software and row of memory, as `constants` predict its tensors; arguments as above."""
    runner = Runner([row for row in rows if row.mem_gib_per_gpu], progress)
    return _memory_software(runner, _memory_rows(runner, runner.predictions(constants), constants))


_HEAD = """\
# Constants of the cost models, by dotted name. Evidence: `measured` was read off measurements,
# `fitted` is remade by `wattree validate --fit` from published training rows, `chosen` is a stated
# assumption. `source` of a fitted constant is what its start value rests on, `spread` the standard
# deviation of its logarithm after the fit. Devices are named as in the catalog; `die`,
# `architecture` and `pooled` stand in, in this order, for devices without constants of their own.
"""
_RESIDUALS = """\
# What the constants leave of the errors on rows left out of the fit, by class of evidence: standard
# deviations of logarithms that put 80 % of the rows inside their intervals; and the software
# families that have measured rows at all.
"""


def write_calibration(
    path: Path, calibration: Calibration, left_out: Mapping[str, Mapping[str, float]]
) -> None:
    """Write `calibration` to `path` atomically.

    Args:
        path: Where to.
        calibration: The constants.
        left_out: Quantity, or kind of hold-out → what was left out of the fit → mean absolute
            error on its rows.
    """
    lines = [_HEAD, *constant_lines(calibration.constants), ""]
    lines.append("# Mean absolute error of rows that a fit never saw, by what was left out of it.")
    lines.append("left_out:")
    for quantity, sources in left_out.items():
        lines.append(f"  {json.dumps(quantity)}:")
        lines += [f"    {json.dumps(name)}: {error:.4f}" for name, error in sources.items()]
    if calibration.residuals.spreads:
        lines += ["", *_RESIDUALS.splitlines(), *residual_lines(calibration.residuals)]
    write_atomic(path, "\n".join(lines) + "\n")
