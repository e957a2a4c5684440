"""One strategy of a job by the closed form: time, memory and energy of a step in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattree.accounts.bill import carbon_gco2e, cost_usd, occupied_nodes, used_nodes
from wattree.accounts.estimated_intervals import estimated_intervals
from wattree.accounts.generation import DecodeFigures, StepFigures, generation_use
from wattree.accounts.goodput import run_step
from wattree.accounts.pool_use import peak_flop_per_s
from wattree.closed_form import strategies as closed_form
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Estimates
from wattree.cost import load_calibration
from wattree.errors import JobError, StrategyError
from wattree.hardware import Device
from wattree.job import Job, naming
from wattree.job.entered import entering
from wattree.lowering.idle import idle_choices
from wattree.lowering.model import check_recomputation
from wattree.lowering.placed import PlacedJob, checked_parts
from wattree.lowering.setting import Setting
from wattree.predict.example import missing_strategy
from wattree.predict.generation import workload_setting
from wattree.predict.generation_estimate import estimated_steps, of_all_steps
from wattree.predict.recent_jobs import recent
from wattree.shown import Shown
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import GenerationUse, RunStep
from wattree.trace.plain import as_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedMemory:
    """Peak device memory of the fullest rank. [B]

    Attributes:
        peak_bytes: Peak, with the framework's overhead.
        capacity_bytes: Memory of the device.
        fits: Whether the peak is within the capacity.
    """

    peak_bytes: float
    capacity_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedEnergy:
    """Energy of a step on all nodes of the job, PUE included, as `total`. [J]"""

    total: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepEstimate(Shown):
    """A training step in closed form; figures have the names of `Result`.

    Attributes:
        step_time_s: Time of one step. [s]
        samples_per_s: Throughput of the job.
        tokens_per_s: The same in tokens; None if samples are not sequences.
        memory: Peak of the fullest device.
        energy_j: Energy of a step.
        average_power_w: Of the job's nodes, before PUE. [W]
        peak_power_w: The same, highest mean over 1/256 of the step. [W]
        pue: Facility energy / energy of the nodes.
        cost_usd: Cost of a step; None if no price is known. [USD]
        carbon_gco2e: Carbon of a step; None if the site has no carbon intensity. [g]
        interval: Quantity → its 80 % interval, as in `Result`; a little wider, because the closed
            form does not give the parts of a step.
        generation: Generated tokens of a job that generates, whose step is all of it; else None.
        run_step: The step with its share of what interrupts a run; None where nothing does.
    """

    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    memory: EstimatedMemory
    energy_j: EstimatedEnergy
    average_power_w: float
    peak_power_w: float
    pue: float
    cost_usd: float | None
    carbon_gco2e: float | None
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    generation: GenerationUse | None = None
    run_step: RunStep | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries, ready for JSON."""
        fields: dict[str, Any] = as_plain(self)
        return fields


@entering()
def estimate(job: Job, *, calibration: str | Path | None = None) -> StepEstimate:
    """Estimate time, memory, energy, money and carbon of a step, or of generation, in closed form.

    `plan` screens by the same formulas. `simulate` takes longer and is more detailed.

    Args:
        job: Model, strategy and cluster. The strategy must be explicit, not `auto`. Its
            neighbors are ignored.
        calibration: File of constants; the shipped one if None.

    Raises:
        StrategyError: The strategy does not fit model or cluster, or the closed form does not
            support it; the message names the job.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    setting = workload_setting(job, load_calibration(calibration))
    if isinstance(job.strategy, str):
        raise JobError(job.source, [missing_strategy(setting, "estimate")])
    with naming(job):
        return _estimated(setting)


def check_strategy(job: Job) -> tuple[str, ...]:
    """Return warnings of a strategy that fits its model and cluster, and of these: `key: why`.

    Computes no figures.

    Raises:
        StrategyError: It does not; the message names the job.
        WattreeError: The job is impossible.
    """
    if isinstance(job.strategy, str):
        return ()
    setting = workload_setting(job, load_calibration(None))
    with naming(job):
        _check_all(setting, _known(setting.job))
    return (*idle_choices(setting.job, setting.model), *setting.warnings)


def _check_all(setting: Setting, options: StrategyOptions) -> None:
    for step in (setting, *(decode for _, decode in setting.decode or ())):
        _check(step, options)


def _estimated(setting: Setting) -> StepEstimate:
    """Return the figures of the strategy of its job."""
    job, data = setting.job, setting.job.data
    options = _known(job)
    _check_all(setting, options)
    if setting.decode is not None:
        return _generated(setting, options, Degrees.of([options], data.global_batch))
    asked = recent(setting)
    found = closed_form.estimate(asked.setting, options, shared=asked.shared)
    return _step_estimate(setting, options, found)


def _check(setting: Setting, options: StrategyOptions) -> None:
    """Check what a simulation checks of the closed form's strategy, model and cluster."""
    job, model, data = setting.job, setting.model, setting.job.data
    check_recomputation(options, model)
    strategy = strategy_of(options, model=model, global_batch=data.global_batch)
    checked_parts(PlacedJob.of(setting, strategy), job.cluster)


def _generated(setting: Setting, options: StrategyOptions, degrees: Degrees) -> StepEstimate:
    """Return the figures of generating the tokens of a batch."""
    job = setting.job
    found = estimated_steps(setting, options, degrees, shared=closed_form.Shared())
    peak = peak_flop_per_s(job.cluster, options.ranks, setting.peak_precision)

    def figures(step: Setting, parts: Sequence[tuple[Any, Estimates]]) -> StepFigures:
        time_s = sum(np.sum(times * each.step_time_s).item() for times, each in parts)
        return StepFigures(
            time_s=time_s,
            energy_j=sum(np.sum(times * each.energy_j).item() for times, each in parts),
            mfu=step.model_flop() / peak / time_s,
        )

    assert setting.decode is not None
    decode = [
        DecodeFigures(cache_length=at.cache_length, count=at.count, step=figures(step, parts))
        for (_, step), (at, parts) in zip(setting.decode, found.decode, strict=True)
    ]
    use = generation_use(
        figures(setting, [(1.0, found.prefill)]), decode, job.data, kv_cache_bytes=None
    )
    return _step_estimate(setting, options, of_all_steps(found), generation=use)


def _known(job: Job) -> StrategyOptions:
    """Return the strategy of a job if the closed form knows all of it."""
    strategy = job.strategy
    if not isinstance(strategy, StrategyOptions):
        problem = "found a tree of modules; expected degrees and options alone"
    elif not is_expressible(strategy, job.cluster):
        problem = (
            "found what makes ranks differ, is copied behind the devices, or overlaps the "
            "optimizer; expected none of that"
        )
    else:
        return strategy
    raise StrategyError(
        {"strategy": f"{problem}, as the closed form knows nothing else; use simulate instead"}
    )


def _step_estimate(
    setting: Setting,
    options: StrategyOptions,
    found: Estimates,
    *,
    generation: GenerationUse | None = None,
) -> StepEstimate:
    """Return the figures of one strategy."""
    job, cluster = setting.job, setting.job.cluster
    colocation = options.colocation
    step_s, energy_j = float(found.step_time_s[0]), float(found.energy_j[0])
    batch = colocation.samples(job.data.global_batch)
    nodes = occupied_nodes(job, options.ranks)
    tokens_per_s, read_share = batch * job.data.sequence_length / step_s, 0.0
    if generation is not None:
        tokens_per_s = generation.output_tokens_per_s
        read_share = 1.0 - generation.prefill.time_s / step_s
    device = cluster.pools[int(found.pool[0])].node.device
    estimate = StepEstimate(
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=tokens_per_s if setting.has_tokens else None,
        memory=_memory(found, device, options),
        energy_j=EstimatedEnergy(total=energy_j),
        average_power_w=energy_j / cluster.site.pue / step_s,
        peak_power_w=float(found.peak_power_w[0]),
        pue=cluster.site.pue,
        cost_usd=cost_usd(cluster, nodes, step_s, energy_j),
        carbon_gco2e=carbon_gco2e(job, nodes, step_s, energy_j),
        generation=generation,
        run_step=run_step(setting, used_nodes(job, options.ranks), step_s, energy_j),
    )
    intervals = estimated_intervals(
        setting, device, options.ranks, _figures(estimate), read_share=read_share
    )
    return replace(estimate, interval=intervals)


def _figures(estimate: StepEstimate) -> dict[str, float | None]:
    """Return quantity → value, as intervals are named."""
    return {
        "step_time_s": estimate.step_time_s,
        "samples_per_s": estimate.samples_per_s,
        "tokens_per_s": estimate.tokens_per_s,
        "memory.peak_bytes": estimate.memory.peak_bytes,
        "average_power_w": estimate.average_power_w,
        "energy_j": estimate.energy_j.total,
        "cost_usd": estimate.cost_usd,
        "carbon_gco2e": estimate.carbon_gco2e,
    }


def _memory(found: Estimates, device: Device, options: StrategyOptions) -> EstimatedMemory:
    """Return the memory of the fullest device, less what overflows to where there is room."""
    whole = float(found.process_bytes[0]) * options.colocation.processes
    has_room = bool(found.tier_fits[0])
    spilled = float(found.spilled[0]) * has_room
    peak = min((1.0 - spilled) * whole, device.memory_bytes) if spilled else whole
    return EstimatedMemory(
        peak_bytes=peak,
        capacity_bytes=device.memory_bytes,
        fits=has_room and peak <= device.memory_bytes,
    )
