"""Predict measured rows, sum up the errors, and remake the calibration on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattree.accounts.interval import facts_of, has_memory_rows, interval, memory_spread
from wattree.cost import Calibration, Constant, load_calibration, software_family
from wattree.cost.communicator import communicator_bytes
from wattree.cost.products import with_levels
from wattree.errors import JobError, WattreeError
from wattree.graph import ModelGraph
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.predict import Prediction, Setting, predicted, setting_of
from wattree.predict.left_open import decided
from wattree.strategy import AXES, StrategyOptions
from wattree.trace import IntervalPart
from wattree.validation.anchored import anchored_scores, under_limits
from wattree.validation.calibrate import CalibrationFit, FitRow, fit
from wattree.validation.calibration_file import write_calibration
from wattree.validation.coverage import with_residuals
from wattree.validation.express import Expressed, express
from wattree.validation.hold_outs import pooled_means
from wattree.validation.left_out import FittedRows, LeftOutError, left_out_errors
from wattree.validation.measurement import RowMeasurement, measurement
from wattree.validation.memory_fit import (
    MemoryRow,
    fit_memory,
    memory_bytes,
)
from wattree.validation.outcome import NOTHING, Validation, hold_out_key
from wattree.validation.priors import FITTED, FITTED_NETWORKS, Prior
from wattree.validation.rows import MeasuredRow, bundled_rows, read_rows
from wattree.validation.score import ALL_SOURCES, Scored

Progress = Callable[[str, int, int], None]

#: Rounds of: simulate every row, carry the ratio to the closed form, fit.
_OUTER_ROUNDS = 1
#: Written by a fit where no file is named.
_DEFAULT_OUTPUT = Path("calibration.yaml")


def validate(
    rows: Sequence[Path] = (),
    *,
    calibration: Path | None = None,
    fit: bool = False,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    progress: Progress | None = None,
) -> Validation:
    """Predict measured rows and compare.

    Args:
        rows: CSV files of measured rows; the bundled ones if empty.
        calibration: File of constants; the shipped ones if None. With `fit`, the file that the
            new constants are written to (`calibration.yaml` if None).
        fit: Fit the constants to the core rows first, and leave each source out in turn.
        sharing, mutual_slowdown: Rules of play, as `wattree.simulate` knows them.
        progress: Called with (stage, done, total).

    Raises:
        JobError: A file cannot be read as rows or as a calibration.
    """
    measured = [row for path in rows for row in read_rows(path)] if rows else list(bundled_rows())
    # First, so that a file that cannot be read is told of before seconds of work.
    constants = None if fit else load_calibration(calibration)
    runner = _Runner(
        measured,
        progress or (lambda *_: None),
        sharing=sharing,
        mutual_slowdown=mutual_slowdown,
    )
    if constants is None:
        return _fitted(runner, calibration or _DEFAULT_OUTPUT)
    return runner.validation(constants, constants.left_out)


@dataclass(slots=True)
class _Entry:
    """One row on its way: what it measured, the job it is, or why it is none."""

    row: MeasuredRow
    measurement: RowMeasurement
    expressed: Expressed | None = None
    reason: str | None = None


@dataclass(slots=True)
class _Runner:
    """Expresses rows once; predicts each distinct job once per calibration."""

    rows: Sequence[MeasuredRow]
    progress: Progress
    sharing: str = "max-min"
    mutual_slowdown: bool = True
    entries: list[_Entry] = field(default_factory=list)
    models: dict[str, ModelGraph] = field(default_factory=dict)
    whole: dict[str, Job] = field(default_factory=dict)
    limited: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.limited = under_limits(self.rows)
        for row in self.rows:
            if row.row_id in self.limited:
                continue  # no job: predicted from other rows
            entry = _Entry(row=row, measurement=measurement(row))
            try:
                entry.expressed = self._decided(express(row))
            except WattreeError as error:
                entry.reason = str(error)
            else:
                samples = entry.expressed.job.data.global_batch
                entry.measurement = measurement(row, samples=samples)
            self.entries.append(entry)

    def _decided(self, expressed: Expressed) -> Expressed:
        """Return a row whose job says what it left to its software, as `simulate` decides it."""
        job = expressed.job
        if not job.left_open:
            return expressed
        key = _job_key(job)
        if key not in self.whole:
            self.whole[key] = decided(self.setting(job, load_calibration())).job
        whole = replace(self.whole[key], source=job.source, left_open=())
        return replace(expressed, job=whole, assumptions=(*expressed.assumptions, *whole.assumed))

    def setting(self, job: Job, constants: Calibration) -> Setting:
        """Return the setting of `job`; models are built once."""
        key = repr(job.model)
        if key not in self.models:
            self.models[key] = model_of(job)
        return setting_of(job, constants, model=self.models[key])

    def predictions(self, constants: Calibration) -> dict[str, Prediction | str]:
        """Return row_id → prediction, or why there is none. Equal jobs are simulated once."""
        done: dict[str, Prediction | str] = {}
        found: dict[str, Prediction | str] = {}
        for index, entry in enumerate(self.entries):
            self.progress("simulating rows", index, len(self.entries))
            if entry.expressed is None or entry.measurement.value is None:
                continue
            key = _job_key(entry.expressed.job)
            if key not in done:
                done[key] = self._prediction(entry.expressed.job, constants)
            found[entry.row.row_id] = done[key]
        self.progress("simulating rows", len(self.entries), len(self.entries))
        return found

    def _prediction(self, job: Job, constants: Calibration) -> Prediction | str:
        assert isinstance(job.strategy, StrategyOptions)
        try:
            prediction = predicted(
                self.setting(job, constants),
                job.strategy,
                detail=False,
                sharing=self.sharing,
                mutual_slowdown=self.mutual_slowdown,
            )
        except WattreeError as error:
            return str(error)
        return _slim(prediction)

    def validation(
        self, constants: Calibration, left_out: Mapping[str, Mapping[str, float]]
    ) -> Validation:
        """Return all rows scored under `constants`."""
        return self._scored(self.predictions(constants), constants, left_out)

    def _scored(
        self,
        predictions: Mapping[str, Prediction | str],
        constants: Calibration,
        left_out: Mapping[str, Mapping[str, float]],
    ) -> Validation:
        own = iter([self._score(entry, predictions, constants) for entry in self.entries])
        limited = [row for row in self.rows if row.row_id in self.limited]
        anchored = anchored_scores(limited, constants)
        scored = []
        for row in self.rows:
            mine = anchored[row.row_id] if row.row_id in self.limited else [next(own)]
            scored += mine
        return Validation(
            scored=tuple(scored),
            left_out=left_out,
            assumptions={
                e.row.row_id: e.expressed.assumptions for e in self.entries if e.expressed
            },
        )

    def _score(
        self,
        entry: _Entry,
        predictions: Mapping[str, Prediction | str],
        constants: Calibration,
    ) -> Scored:
        value: float | None = None
        reason = entry.reason or entry.measurement.reason
        prediction = predictions.get(entry.row.row_id)
        if reason is None and isinstance(prediction, str):
            reason = prediction
        if reason is None and isinstance(prediction, Prediction):
            value = _quantity(entry, prediction, constants)
            if value is None:
                reason = f"{entry.measurement.quantity} is not predicted for such rows"
        scored = Scored(
            row=entry.row,
            quantity=entry.measurement.quantity,
            measured=entry.measurement.value,
            predicted=value,
            skipped=reason,
        )
        if value is None or not isinstance(prediction, Prediction):
            return scored
        span, evidence = self._interval(entry, prediction, value, constants)
        return replace(
            scored,
            interval=span,
            evidence=evidence,
            peak_bytes=prediction.result.memory.peak_bytes,
            capacity_bytes=prediction.result.memory.capacity_bytes,
        )

    def _interval(
        self, entry: _Entry, prediction: Prediction, value: float, constants: Calibration
    ) -> tuple[tuple[float, float] | None, str]:
        """Return the interval of a row's quantity, and what is known of such rows.

        Memory is as the tool of the row reads it.
        """
        result, quantity = prediction.result, entry.measurement.quantity
        if quantity != "peak_memory_bytes":
            return result.interval.get(quantity), result.evidence_class
        assert entry.expressed is not None
        setting = self.setting(entry.expressed.job, constants)
        kind = entry.measurement.memory_kind or "process"
        spread = memory_spread(setting, prediction.peak.tensors / value, kind)
        software = "measured" if has_memory_rows(setting) else "generic"
        return interval(value, spread), f"{kind}, {software}"


def _job_key(job: Job) -> str:
    return repr(replace(job, source=""))


def _slim(prediction: Prediction) -> Prediction:
    """Drop the trace: hundreds of rows are kept at once."""
    return replace(prediction, trace=None, power=(), ledger=None)  # type: ignore[arg-type]


def _quantity(entry: _Entry, prediction: Prediction, constants: Calibration) -> float | None:
    kind = entry.measurement.quantity
    if kind == "step_time_s":
        return prediction.result.step_time_s
    if kind == "average_power_w":
        return prediction.result.average_power_w
    if kind == "peak_memory_bytes":
        return memory_bytes(_memory_row(entry, prediction, constants), constants)
    return None


def _memory_row(entry: _Entry, prediction: Prediction, constants: Calibration) -> MemoryRow:
    assert entry.expressed is not None
    assert entry.measurement.value is not None
    job = entry.expressed.job
    assert isinstance(job.strategy, StrategyOptions)
    degrees = {axis: job.strategy.value(axis) for axis in AXES}
    rings, messages = communicator_bytes(degrees, job.cluster.node)
    return MemoryRow(
        row=entry.row,
        context_bytes=constants.device(job.cluster.node.device, "memory_context_bytes"),
        rings_bytes=float(rings[0]),
        messages_bytes=float(messages[0]),
        allocator=software_family(job.software).allocator,
        kind=entry.measurement.memory_kind or "process",
        measured_bytes=entry.measurement.value,
        tensor_bytes=prediction.peak.tensors,
    )


#: Rows of language models fit the first, those of other networks the second: no constant is fitted
#: to rows of both, so that neither moves the other's predictions.
_GROUPS: Mapping[bool, Mapping[str, Prior]] = {False: FITTED, True: FITTED_NETWORKS}


def _fitted(runner: _Runner, output: Path) -> Validation:
    """Fit, leave sources out, write the calibration, and return the rows scored with it."""
    shipped, by_group = load_calibration(), _fit_rows(runner)
    _refuse_few(by_group)
    constants = _with_priors(shipped, [_GROUPS[is_network] for is_network in by_group])
    predictions = runner.predictions(constants)
    results: list[CalibrationFit] = []
    everything: list[LeftOutError] = []
    left_out = {quantity: dict(errors) for quantity, errors in shipped.left_out.items()}
    for is_network, rows in by_group.items():
        for row in rows:
            prediction = predictions[row.expressed.row.row_id]
            row.ratio = 1.0
            if isinstance(prediction, Prediction):
                row.ratio = prediction.result.step_time_s / row.estimate_s(constants)
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


def _fit_rows(runner: _Runner) -> dict[bool, list[FitRow]]:
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
    """Refuse to fit constants to fewer rows than there are constants."""
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


def _joined(errors: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(each) for each in errors.values()])


def _recorded(constants: Calibration, results: Sequence[CalibrationFit]) -> Calibration:
    """Put the posterior spread beside each fitted constant, and means where devices lack one."""
    spreads = {name: spread for result in results for name, spread in result.spread.items()}
    table = {
        name: replace(constant, spread=spreads.get(name, constant.spread))
        for name, constant in constants.constants.items()
    }
    return pooled_means(with_levels(replace(constants, constants=table)))


def _memory_software(runner: _Runner, rows: Sequence[MemoryRow]) -> list[tuple[str, MemoryRow]]:
    """Return the rows of memory, each with its software."""
    software = {e.row.row_id: e.expressed.job.software for e in runner.entries if e.expressed}
    return [(software[row.row.row_id], row) for row in rows]


def _memory_rows(
    runner: _Runner, predictions: Mapping[str, Prediction | str], constants: Calibration
) -> list[MemoryRow]:
    rows = []
    for entry in runner.entries:
        prediction = predictions.get(entry.row.row_id)
        is_memory = entry.measurement.quantity == "peak_memory_bytes" and entry.row.core
        if is_memory and isinstance(prediction, Prediction):
            rows.append(_memory_row(entry, prediction, constants))
    return rows


def _memory_fit(
    runner: _Runner, predictions: Mapping[str, Prediction | str], constants: Calibration
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
