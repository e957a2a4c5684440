"""Compares a measurement with the prediction: the same job simulated, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wattree.cost import Calibration, load_calibration
from wattree.cost.calibration import device_names
from wattree.job import Job
from wattree.predict import run_of, setting_of, simulate
from wattree.predict.execute import written_out
from wattree.runtime.train.outcome import Trained
from wattree.runtime.train.shared_layers import as_trained
from wattree.strategy import StrategyOptions
from wattree.strategy.schedules import PIPELINE_SCHEDULES
from wattree.trace import STAGES, Run

#: Up to which share bytes sent are those predicted: of losses, and of weights used twice.
_SAME_BYTES = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One figure of a step; None where it is not known.

    Attributes:
        name: `step`, `materials`, `computing`, `communicating`, and of pipelines `bubble`.
        predicted_s, measured_s: What the step takes, or waits for the stage. [s]
        predicted_busy_s, measured_busy_s: How long the stage is at work, hidden time included. [s]
        predicted_j, measured_j: Energy. [J]
    """

    name: str
    predicted_s: float
    measured_s: float
    predicted_busy_s: float | None = None
    measured_busy_s: float | None = None
    predicted_j: float | None = None
    measured_j: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionComparison:
    """A prediction and its measurement.

    Attributes:
        figures: Of the step and its stages.
        predicted_sent_bytes, measured_sent_bytes: Payload that a rank sends in a step. [B]
        calibration: File of constants; None for those that ship.
        advice: What makes the prediction one of this machine; None where nothing is known to.
        unprofiled: Device types of the job of which the calibration has nothing measured: the
            prediction is that of a datasheet, and its distance no error of a model of this machine.
    """

    figures: tuple[ComparedFigure, ...]
    predicted_sent_bytes: float
    measured_sent_bytes: float
    calibration: str | None
    warnings: tuple[str, ...] = ()
    advice: str | None = None
    unprofiled: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        return asdict(self)


def compared(
    found: Trained, *, calibration: str | Path | None, on_processor: bool = False
) -> PredictionComparison:
    """Simulate a job and return its figures with the measured ones.

    Energies are those of the nodes, without what the site adds.

    Args:
        calibration: File of constants; those that ship if None.
        on_processor: The processor trained, whatever the job's devices are.

    Raises:
        WattreeError: The job cannot be simulated.
    """
    job = found.job
    prediction = simulate(_with_layers(found, calibration), calibration=calibration)
    run = run_of(job, prediction, steps=1, name="predicted")
    ranks = prediction.result.ranks
    measured_steps = max(found.run.iterations, 1)
    figures = [
        ComparedFigure(
            name="step",
            predicted_s=prediction.result.step_time_s,
            measured_s=found.result.step_time_s,
            predicted_j=run.energy_j,
            measured_j=found.run.energy_j / measured_steps if found.run.meters else None,
        ),
        *_with_bubble(
            _stages(run, found.run, measured_steps),
            prediction.result.time_s.bubble,
            found.result.time_s.bubble,
        ),
    ]
    use = found.result.training
    assert use is not None
    # As measured: of a process, be it one that sends for others of its device or not.
    predicted_bytes = (run.work.network_bytes or 0.0) / (ranks * _processes(job))
    constants = load_calibration(calibration)
    unprofiled = unprofiled_devices(job, constants, on_processor=on_processor)
    return PredictionComparison(
        figures=tuple(figures),
        predicted_sent_bytes=predicted_bytes,
        measured_sent_bytes=use.sent_bytes,
        calibration=None if calibration is None else str(calibration),
        warnings=(*prediction.warnings, *other_bytes(job, predicted_bytes, use.sent_bytes)),
        advice=advice_of(job, constants, ranks=ranks, unprofiled=unprofiled),
        unprofiled=unprofiled,
    )


def other_bytes(job: Job, predicted: float, measured: float) -> Iterator[str]:
    """Yield what a rank sends other than predicted, with the causes that are known. [B]"""
    if abs(measured - predicted) <= _SAME_BYTES * predicted:
        return
    causes = _byte_causes(job, job.strategy) if isinstance(job.strategy, StrategyOptions) else ()
    known = "; ".join(causes)
    off = f", {measured / predicted - 1:+.0%} from" if predicted else " instead of"
    yield (
        f"a rank sends {measured:,.0f} B a step{off} the predicted {predicted:,.0f} B"
        f"{f': {known}' if known else ''}"
    )


def _byte_causes(job: Job, options: StrategyOptions) -> Iterator[str]:
    schedule = PIPELINE_SCHEDULES.get(options.pipeline.schedule)
    if options.ep > 1:
        yield "tokens go where the router sends them"
    if options.tp * options.cp > 1 and schedule is not None and schedule.splits_backward:
        yield "PyTorch runs collectives of layers again in the separate pass for their weights"
    if options.tp > 1 and options.memory.recompute != "none" and not options.phantoms.enabled:
        # Stacks are predicted with these layers.
        software = setting_of(job, load_calibration()).under(options).software
        if job.model.ffn is None and software.stops_early:
            yield (
                "recomputation that stops early repeats the last reduction of a layer of "
                f"'wattree train', not that of {software.title}"
            )


def _with_layers(found: Trained, calibration: str | Path | None) -> Job:
    """Return the job with the layers that ranks shared, where another plan than its own chose."""
    options = found.job.strategy
    if not found.layers or not isinstance(options, StrategyOptions):
        return found.job
    setting = setting_of(found.job, load_calibration(calibration))
    whole = written_out(setting, options)
    regather = options.phantoms.regather
    shared = as_trained(whole, setting.model, found.layers, regather=regather)
    return replace(found.job, strategy=shared)


def _processes(job: Job) -> int:
    """Return the training processes on each device."""
    strategy = job.strategy
    return 1 if isinstance(strategy, str) else strategy.colocation.processes


#: What makes a prediction one of this machine.
_PROFILE = (
    "measure this machine with 'wattree profile --out calibration.yaml', name "
    "calibration.node.yaml in cluster.node, and compare again with --calibration calibration.yaml"
)


def unprofiled_devices(
    job: Job, calibration: Calibration, *, on_processor: bool = False
) -> tuple[str, ...]:
    """Return the device types of a job of which a calibration has nothing measured here.

    Args:
        on_processor: The processor trained: what is known of accelerators is not of it.
    """
    devices = {pool.node.device.name: pool.node.device for pool in job.cluster.pools}
    return tuple(
        name
        for name, device in devices.items()
        if (on_processor and device.kind != "cpu")
        or not any(each.startswith(device_names(device, "")[:-1]) for each in calibration.constants)
    )


def advice_of(
    job: Job, calibration: Calibration, *, ranks: int, unprofiled: tuple[str, ...] = ()
) -> str | None:
    """Return a line for devices without a profile, and for CPUs whose exchanges were not timed.

    The latency that ships is that of NCCL between accelerators (`pooled.alpha_s`), far below that
    of gloo between processes.

    Args:
        ranks: Of the job; one sends nothing.
        unprofiled: Device types of which nothing was measured.
    """
    if unprofiled:
        return (
            f"predicted for {', '.join(unprofiled)} as its datasheet has it: no profile of this "
            f"machine, so how far the two are apart says nothing; {_PROFILE}"
        )
    if ranks == 1:
        return None
    devices = {pool.node.device.name: pool.node.device for pool in job.cluster.pools}
    unknown = [
        name
        for name, device in devices.items()
        if device.kind == "cpu" and calibration.own(device, "alpha_s", 0.0) == 0.0
    ]
    if not unknown:
        return None
    return (
        f"{', '.join(unknown)} is not calibrated: communication is predicted as between "
        f"accelerators, far too short; {_PROFILE}"
    )


def _stages(predicted: Run, measured: Run, steps: int) -> list[ComparedFigure]:
    found = []
    for name in STAGES:
        before: Mapping[str, Any] = asdict(predicted.stages[name])
        use = measured.stages[name]
        found.append(
            ComparedFigure(
                name=name,
                predicted_s=before["exposed_s"],
                measured_s=use.exposed_s / steps,
                predicted_busy_s=before["busy_s"],
                measured_busy_s=use.busy_s / steps,
                predicted_j=before["energy_j"],
                measured_j=None if use.energy_j is None else use.energy_j / steps,
            )
        )
    return found


def _with_bubble(
    stages: list[ComparedFigure], predicted_s: float, measured_s: float
) -> list[ComparedFigure]:
    """Return the stages of a step, with separate waits for other pipeline stages.

    Predictions have it as time in which nothing is communicated, ranks as waiting for a message.
    """
    if predicted_s == measured_s == 0.0:
        return stages
    apart = {"computing": (predicted_s, 0.0), "communicating": (0.0, measured_s)}
    found = [
        replace(
            each,
            predicted_s=each.predicted_s - apart.get(each.name, (0.0, 0.0))[0],
            measured_s=each.measured_s - apart.get(each.name, (0.0, 0.0))[1],
        )
        for each in stages
    ]
    return [*found, ComparedFigure(name="bubble", predicted_s=predicted_s, measured_s=measured_s)]
