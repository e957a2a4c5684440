"""Forecast energy without a run: work of a job's simulated step, times calibration constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wattree.energy.calibration import EnergyCalibration
from wattree.energy.calibration_file import read_calibration
from wattree.energy.commands import predict_energy
from wattree.energy.observed import ranks_of
from wattree.energy.predict import EnergyForecast
from wattree.energy.stages import all_reduce_sent_bytes
from wattree.errors import JobError
from wattree.job import Job
from wattree.predict.runs import run_of
from wattree.predict.simulation import simulate
from wattree.trace.run import Run, Work

#: Axes whose ranks hold whole replicas, the only case that the stage model covers.
_REPLICAS = "dp"
#: Relative difference between simulated and assumed traffic above which it is reported.
_ALIKE = 0.01
#: Work that ranks share evenly.
_SHARED = ("samples", "flop", "memory_bytes", "read_bytes", "core_s", "copied_bytes")


def forecast_job(
    calibration: EnergyCalibration | str | Path,
    job: Job,
    *,
    nodes: Sequence[int],
    iterations: int = 1,
) -> tuple[EnergyForecast, ...]:
    """Return time and energy of runs of a job's model that were not made, one per number of nodes.

    What a rank does in a step (samples, FLOP, bytes, core time, gradients) is taken from the
    job's simulation; its times and energy are not looked at, nor is how many ranks the job has:
    constants and ranks of a node are the calibration's.

    Args:
        calibration: Or its file.
        job: Data-parallel training with a strategy.
        nodes: How many, each rank with the same work.
        iterations: Steps.

    Raises:
        JobError: The job is not data-parallel, or has no strategy.
        RunError: The calibration does not determine a needed constant.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    _check_replicas(job)
    if not isinstance(calibration, EnergyCalibration):
        calibration = read_calibration(calibration)
    prediction = simulate(job)
    run = run_of(job, prediction, steps=1, name=job.source)
    warnings = (*prediction.warnings, *_traffic(run, prediction.result.ranks))
    unmade = _on_one_node(run, calibration, prediction.result.ranks)
    found = predict_energy(calibration, nodes=nodes, run=unmade, iterations=iterations)
    return tuple(replace(each, warnings=(*each.warnings, *warnings)) for each in found)


def _check_replicas(job: Job) -> None:
    if isinstance(job.strategy, str):
        return  # `simulate` says what is missing
    if split := [
        f"{axis}={n}" for axis, n in job.strategy.degrees.items() if n > 1 and axis != _REPLICAS
    ]:
        raise JobError(
            job.source,
            [
                f"strategy: found {', '.join(split)}, expected whole replicas (dp alone): "
                "the stage model knows no other traffic than that of gradients"
            ],
        )


def _traffic(run: Run, ranks: int) -> list[str]:
    """Return a warning where a job's traffic differs from the assumption of the stage model."""
    if ranks == 1 or not run.work.gradient_bytes:
        return []
    expected = ranks * all_reduce_sent_bytes(run.work.gradient_bytes, ranks)
    found = run.work.network_bytes or 0.0
    if abs(found / expected - 1) <= _ALIKE:
        return []
    return [
        f"the job's ranks send {found / expected:.2f} times what an all-reduce of fp32 gradients "
        "sends, which is what is predicted here"
    ]


def _on_one_node(run: Run, calibration: EnergyCalibration, ranks: int) -> Run:
    """Return the run on one node of the calibration's kind, each rank with the same work."""
    node = replace(
        run,
        node=calibration.node,
        nodes=1,
        devices_per_node=calibration.devices_per_node,
        stages={},
        meters=(),
    )
    each = {name: getattr(run.work, name) for name in _SHARED}
    shared = {
        name: None if value is None else value * ranks_of(node) / ranks
        for name, value in each.items()
    }
    return replace(node, work=Work(gradient_bytes=run.work.gradient_bytes, **shared))
