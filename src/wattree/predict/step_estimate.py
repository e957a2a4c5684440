"""One strategy of a job by the closed form: time, memory and energy of a step in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from wattree.accounts.bill import cost_usd, occupied_nodes
from wattree.accounts.generation import DecodeFigures, StepFigures, generation_use
from wattree.accounts.interval import estimated_intervals
from wattree.accounts.pool_use import peak_flop_per_s
from wattree.closed_form import strategies as closed_form
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Estimates
from wattree.cost import Calibration, load_calibration
from wattree.errors import JobError, StrategyError
from wattree.hardware import Device
from wattree.job import Job, WorkloadKind, naming
from wattree.lowering.legality import check_fits
from wattree.lowering.model import check_recomputation
from wattree.lowering.setting import Setting, setting_of
from wattree.predict.example import missing_strategy
from wattree.predict.generation import NO_STRATEGY, generation_steps
from wattree.predict.left_open import decided
from wattree.predict.recent_jobs import recent
from wattree.shown import Shown
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import GenerationUse


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedMemory:
    """Peak device memory of the fullest rank. [B]

    Attributes:
        peak_bytes: Peak, with the framework's overhead.
        capacity_bytes: What the device has.
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
    """A training step by the closed form; figures are called as those of `Result`.

    Attributes:
        step_time_s: Time of one step. [s]
        samples_per_s: Throughput of the job.
        tokens_per_s: The same in tokens; None where samples are no sequences.
        memory: Peak of the fullest device.
        energy_j: Of a step.
        average_power_w: Of the job's nodes, before PUE. [W]
        peak_power_w: The same while every rank runs the layer that draws most. [W]
        cost_usd: Of a step; None where no price is known. [USD]
        carbon_gco2e: Of a step; None where the site has no carbon intensity. [g]
        interval: Quantity → what it lies between with 80 % probability, as in `Result`; a little
            wider, as the closed form tells no parts of a step; none where nothing is trained.
        generation: Of a job that generates tokens, whose step is all of it; None of others.
    """

    step_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    memory: EstimatedMemory
    energy_j: EstimatedEnergy
    average_power_w: float
    peak_power_w: float
    cost_usd: float | None
    carbon_gco2e: float | None
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    generation: GenerationUse | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries, ready for JSON."""
        fields = asdict(self)
        if self.generation is None:
            del fields["generation"]
        return fields


def estimate(job: Job, *, calibration: Path | None = None) -> StepEstimate:
    """Estimate time, memory, energy, money and carbon of one training step in closed form.

    The formulas are those by which `plan` screens: `simulate` takes longer and knows more.

    Args:
        job: What to train, how, on what. Its strategy must be given, not `auto`. What runs
            alongside it counts for nothing.
        calibration: File of constants; the shipped one if None.

    Raises:
        StrategyError: The strategy does not fit model or cluster, or the closed form does not know
            it; the message names the job.
        WattreeError: The job is impossible; the message says where and what to do.
    """
    constants = load_calibration(calibration)
    if job.workload is WorkloadKind.GENERATE:
        return _generated(job, constants)
    setting = setting_of(job, constants)
    if isinstance(job.strategy, str):
        raise JobError(job.source, [missing_strategy(setting, "estimate")])
    with naming(job):
        return _estimated(decided(setting, recent(setting)))


def _estimated(setting: Setting) -> StepEstimate:
    """Return the figures of one step under the strategy of its job."""
    job, model, data = setting.job, setting.model, setting.job.data
    assert not isinstance(job.strategy, str)
    options = _known(job.strategy, job)
    check_recomputation(options, model)
    check_fits(
        model,
        strategy_of(options, model=model, global_batch=data.global_batch),
        job.cluster,
        global_batch=options.colocation.process_batch(data.global_batch),
        sequence=data.sequence_length,
        devices=None if job.devices is None else len(job.devices),
    )
    degrees = Degrees.of([options], data.global_batch)
    asked = recent(setting)
    found = closed_form.estimate(asked.setting, options, degrees, shared=asked.shared)
    return _told(setting, options, found)


def _generated(job: Job, calibration: Calibration) -> StepEstimate:
    """Return the figures of generating the tokens of a batch."""
    if isinstance(job.strategy, str):
        raise JobError(job.source, [NO_STRATEGY])
    flop: dict[int, tuple[StepEstimate, float]] = {}

    def step_of(setting: Setting) -> StepEstimate:
        step = _estimated(setting)
        options = setting.job.strategy
        assert isinstance(options, StrategyOptions)
        peak = peak_flop_per_s(setting.job.cluster, options.ranks, setting.precision)
        flop[id(step)] = step, setting.model_flop / peak
        return step

    def figures(parts: Sequence[tuple[float, StepEstimate]]) -> StepFigures:
        time_s = sum(times * each.step_time_s for times, each in parts)
        return StepFigures(
            time_s=time_s,
            energy_j=sum(times * each.energy_j.total for times, each in parts),
            mfu=sum(times * flop[id(each)][1] for times, each in parts) / time_s,
        )

    with naming(job):
        found = generation_steps(job, calibration, step_of, lambda each: each.step_time_s)
    decode = [
        DecodeFigures(cache_length=at.cache_length, count=at.count, step=figures(parts))
        for at, parts in found.decode
    ]
    use = generation_use(figures([(1.0, found.prefill)]), decode, job.data, kv_cache_bytes=None)
    steps = [found.prefill, *(parts[0][1] for _, parts in found.decode)]
    time_s = job.data.global_batch * job.data.generate_length / use.output_tokens_per_s
    energy_j = use.prefill.energy_j + (0.0 if use.decode is None else use.decode.energy_j)
    site = job.cluster.site
    options = job.strategy
    assert isinstance(options, StrategyOptions)
    return StepEstimate(
        step_time_s=time_s,
        samples_per_s=job.data.global_batch / time_s,
        tokens_per_s=use.output_tokens_per_s,
        memory=max((each.memory for each in steps), key=lambda memory: memory.peak_bytes),
        energy_j=EstimatedEnergy(total=energy_j),
        average_power_w=energy_j / site.pue / time_s,
        peak_power_w=max(each.peak_power_w for each in steps),
        cost_usd=cost_usd(job.cluster, occupied_nodes(job, options.ranks), time_s, energy_j),
        carbon_gco2e=None if (g := site.carbon_gco2e_per_j) is None else g * energy_j,
        generation=use,
    )


def _known(strategy: Strategy | StrategyOptions, job: Job) -> StrategyOptions:
    """Return the strategy if the closed form knows all of it."""
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


def _told(setting: Setting, options: StrategyOptions, found: Estimates) -> StepEstimate:
    """Return the figures of one strategy."""
    job, cluster = setting.job, setting.job.cluster
    colocation = options.colocation
    step_s, energy_j = float(found.step_time_s[0]), float(found.energy_j[0])
    batch = colocation.samples(job.data.global_batch)
    nodes = occupied_nodes(job, options.ranks)
    carbon = cluster.site.carbon_gco2e_per_j
    tokens_per_s = batch * job.data.sequence_length / step_s
    device = cluster.pools[int(found.pool[0])].node.device
    told = StepEstimate(
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=tokens_per_s if setting.has_tokens else None,
        memory=_memory(found, device, options),
        energy_j=EstimatedEnergy(total=energy_j),
        average_power_w=energy_j / cluster.site.pue / step_s,
        peak_power_w=float(found.peak_power_w[0]),
        cost_usd=cost_usd(cluster, nodes, step_s, energy_j),
        carbon_gco2e=None if carbon is None else carbon * energy_j,
    )
    if job.workload is not WorkloadKind.TRAIN:  # errors are known of training steps
        return told
    return replace(
        told, interval=estimated_intervals(setting, device, options.ranks, _figures(told))
    )


def _figures(told: StepEstimate) -> dict[str, float | None]:
    """Return quantity → value, as intervals are named."""
    return {
        "step_time_s": told.step_time_s,
        "samples_per_s": told.samples_per_s,
        "tokens_per_s": told.tokens_per_s,
        "memory.peak_bytes": told.memory.peak_bytes,
        "average_power_w": told.average_power_w,
        "energy_j": told.energy_j.total,
        "cost_usd": told.cost_usd,
        "carbon_gco2e": told.carbon_gco2e,
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
