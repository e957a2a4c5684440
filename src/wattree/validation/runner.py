"""Measured rows: each expressed once as a job and predicted once per calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattree.accounts.interval import interval
from wattree.accounts.memory_spread import memory_spread
from wattree.accounts.overhead import context_bytes
from wattree.cost import Calibration, load_calibration, software_family
from wattree.cost.communicator import communicator_bytes
from wattree.errors import WattreeError
from wattree.graph import ModelGraph
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.predict import Prediction, Setting, predicted, setting_of
from wattree.strategy import StrategyOptions
from wattree.validation.anchored import anchored_scores, under_limits
from wattree.validation.express import Expressed, express
from wattree.validation.measurement import RowMeasurement, measurement
from wattree.validation.memory_fit import (
    MemoryRow,
    memory_bytes,
)
from wattree.validation.outcome import Validation
from wattree.validation.plausible import impossible, scoped_power_w
from wattree.validation.rows import MeasuredRow
from wattree.validation.score import Scored

Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class RowEntry:
    """One row: its measurement and its job, or the reason why there is none."""

    row: MeasuredRow
    measurement: RowMeasurement
    expressed: Expressed | None = None
    reason: str | None = None


@dataclass(slots=True)
class Runner:
    """Expresses rows once; predicts each distinct job once per calibration."""

    rows: Sequence[MeasuredRow]
    progress: Progress
    sharing: str = "max-min"
    mutual_slowdown: bool = True
    entries: list[RowEntry] = field(default_factory=list)
    models: dict[str, ModelGraph] = field(default_factory=dict)
    whole: dict[str, Job] = field(default_factory=dict)
    limited: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.limited = under_limits(self.rows)
        for row in self.rows:
            if row.row_id in self.limited:
                continue  # no job: predicted from other rows
            entry = RowEntry(row=row, measurement=measurement(row))
            try:
                entry.expressed = self._decided(express(row))
            except WattreeError as error:
                entry.reason = str(error)
            else:
                entry.measurement = self._possible(row, entry.expressed.job)
            self.entries.append(entry)

    def _possible(self, row: MeasuredRow, job: Job) -> RowMeasurement:
        """Return the measurement of a row; without its value if the hardware cannot have it."""
        found = measurement(row, samples=job.data.global_batch)
        try:
            setting = self.setting(job, load_calibration())
        except WattreeError:
            return found  # the prediction fails likewise, and says why
        step_s = found.value if found.quantity == "step_time_s" else None
        reason = impossible(row, setting, step_s)
        return found if reason is None else replace(found, value=None, reason=reason)

    def _decided(self, expressed: Expressed) -> Expressed:
        """Return a row whose job says what it left to its software, as `simulate` decides it."""
        job = expressed.job
        if not job.left_open:
            return expressed
        key = _job_key(job)
        if key not in self.whole:
            self.whole[key] = self.setting(job, load_calibration()).job
        whole = replace(self.whole[key], source=job.source, left_open=())
        return replace(expressed, job=whole, assumed=(*expressed.assumed, *whole.assumed))

    def setting(self, job: Job, constants: Calibration) -> Setting:
        """Return the setting of `job`; models are built once."""
        data = replace(job.data, global_batch=1)
        key = repr((job.model, job.software, data))
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
            assumed={e.row.row_id: e.expressed.assumed for e in self.entries if e.expressed},
        )

    def _score(
        self,
        entry: RowEntry,
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
        self, entry: RowEntry, prediction: Prediction, value: float, constants: Calibration
    ) -> tuple[tuple[float, float] | None, str]:
        """Return the interval of a row's quantity, and what is known of such rows.

        Memory is as the tool of the row reads it.
        """
        result, quantity = prediction.result, entry.measurement.quantity
        if quantity != "peak_memory_bytes":
            span, whole = result.interval.get(quantity), result.average_power_w
            if span is not None and quantity == "average_power_w":  # of the scope of the row
                span = (span[0] * value / whole, span[1] * value / whole)
            return span, result.evidence_class
        assert entry.expressed is not None
        setting = self.setting(entry.expressed.job, constants)
        kind = entry.measurement.memory_kind or "process"
        spread = memory_spread(setting, prediction.peak.tensors / value, kind)
        return interval(value, spread, spread), f"{kind}, {setting.job.software}"


def _job_key(job: Job) -> str:
    return repr(replace(job, source=""))


def _slim(prediction: Prediction) -> Prediction:
    """Drop the trace, because hundreds of results are stored at once."""
    return replace(prediction, whole=None, power=())  # type: ignore[arg-type]


def _quantity(entry: RowEntry, prediction: Prediction, constants: Calibration) -> float | None:
    kind = entry.measurement.quantity
    if kind == "step_time_s":
        return prediction.result.step_time_s
    if kind == "average_power_w":
        assert entry.expressed is not None
        return scoped_power_w(entry.row, prediction.result, entry.expressed.job.cluster.nodes)
    if kind == "peak_memory_bytes":
        return memory_bytes(memory_row(entry, prediction, constants), constants)
    return None


def memory_row(entry: RowEntry, prediction: Prediction, constants: Calibration) -> MemoryRow:
    """Return a measured peak with what is predicted to add up to it."""
    assert entry.expressed is not None
    assert entry.measurement.value is not None
    job = entry.expressed.job
    assert isinstance(job.strategy, StrategyOptions)
    rings, messages = communicator_bytes(job.strategy.degrees, job.cluster.node)
    software, peak = software_family(job.software), prediction.peak
    return MemoryRow(
        row=entry.row,
        context_bytes=context_bytes(job.cluster.node.device, software, constants),
        rings_bytes=float(rings[0]),
        messages_bytes=float(messages[0]),
        allocator=software.allocator,
        kind=entry.measurement.memory_kind or "process",
        measured_bytes=entry.measurement.value,
        tensor_bytes=peak.first_tensors if entry.expressed.of_first_stage else peak.tensors,
    )
