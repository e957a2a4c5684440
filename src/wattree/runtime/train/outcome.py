"""Measurements as a `Result` and a `Run`, the types of simulations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattree.accounts.bill import carbon_gco2e, cost_usd, embodied_gco2e
from wattree.accounts.pool_use import peak_flop_per_s
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.job import Job
from wattree.predict import Setting, setting_of
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.parallel.watch import STAGES_WAITED
from wattree.runtime.recipe import Recipe
from wattree.runtime.train.account import RankAccount
from wattree.runtime.train.loop import TARGET_OVER, LoopEnd
from wattree.runtime.train.timeline import measured_trace
from wattree.strategy import FIXED_GLOBAL, StrategyOptions
from wattree.strategy.described import describe
from wattree.strategy.presets import strategy_of
from wattree.trace import (
    STAGES,
    EnergyUse,
    Evidence,
    MemoryUse,
    Result,
    Run,
    RunOrigin,
    SimulationSize,
    StageUse,
    TimeParts,
    Trace,
    TrainingUse,
    Work,
)
from wattree.trace.run import WAITED_FOR_CORE


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A run of `train`.

    Attributes:
        trace: Its last steps.
        run: The same for fits: `wattree-run/1`.
        layers: Those of the user's module that ranks shared; empty where none was.
    """

    job: Job
    result: Result
    trace: Trace
    run: Run
    layers: tuple[LayerCut, ...] = ()


#: Parameters are trained in fp32.
_GRADIENT_BYTES = 4.0
#: Share of a run that a rank may wait for a core.
_BUSY = 0.05


def trained(
    job: Job,
    recipe: Recipe,
    run: Run,
    ended: LoopEnd,
    accounts: Sequence[RankAccount],
    *,
    first: int,
    launcher: str,
    capacity_bytes: float,
) -> Trained:
    """Return the outcome of a run.

    Args:
        run: As the meters and the stages have it.
        capacity_bytes: Memory that a rank could have had. [B]
    """
    setting = setting_of(job, load_calibration())
    steps = max(run.iterations, 1)
    sent = _sent_by(accounts, steps)
    run = replace(
        run,
        work=_work(job, recipe, setting, accounts, sent),
        notes=(*run.notes, *_of_cores(accounts, run.wall_s)),
    )
    trace = measured_trace(accounts)
    use = TrainingUse(
        steps=ended.step,
        first_step=first,
        measured_steps=run.iterations,
        losses=ended.losses,
        loss=statistics.fmean(ended.losses[-TARGET_OVER:]) if ended.losses else math.nan,
        target_loss=job.training.target_loss,
        target_step=ended.reached,
        interrupted=ended.interrupted,
        stages={name: _per_step(each, steps) for name, each in run.stages.items()},
        sent_bytes=math.fsum(sent.values()),
        sent_by=sent,
        collectives=sum(account.calls for account in accounts) / len(accounts) / steps,
        parameters_per_rank=statistics.fmean(account.stored for account in accounts),
        launcher=launcher,
        processes_per_device=recipe.processes_per_device,
        batch_rule=_options(job).colocation.batch_rule,
        samples=job.data.global_batch,
        learning_rate_scale=recipe.learning_rate_scale,
    )
    return Trained(
        job=job,
        result=_result(setting, recipe, run, use, accounts=accounts, capacity_bytes=capacity_bytes),
        trace=trace,
        run=run,
    )


def _of_cores(accounts: Sequence[RankAccount], wall_s: float) -> Iterator[str]:
    """Yield that ranks waited for cores, which makes times those of a busy machine."""
    share = max(account.waited_s for account in accounts) / wall_s
    if share > _BUSY:  # False if it is not known
        yield (
            f"{WAITED_FOR_CORE} {share:.0%} of the time: other programs, or more threads than the "
            "job may use, were on the cores; the times are not the machine's"
        )


def _sent_by(accounts: Sequence[RankAccount], steps: int) -> dict[str, float]:
    """Return the bytes that a rank sends in a step, by purpose. [B]"""
    return {
        name: sum(account.sent_bytes.get(name, 0.0) for account in accounts) / len(accounts) / steps
        for name in sorted({name for account in accounts for name in account.sent_bytes})
    }


def _options(job: Job) -> StrategyOptions:
    assert isinstance(job.strategy, StrategyOptions)
    return job.strategy


def _strategy(setting: Setting, recipe: Recipe) -> Mapping[str, object]:
    """Return the strategy as plain values, also where it can be trained and not be predicted."""
    job, options = setting.job, _options(setting.job)
    # Strategies have the batch of one process per device, whatever the rule for more processes.
    grown = 1 if options.colocation.batch_rule == FIXED_GLOBAL else recipe.processes_per_device
    batch = job.data.global_batch // grown
    try:
        strategy = strategy_of(options, model=setting.model, global_batch=batch)
    except StrategyError:
        schedule = {
            "name": recipe.schedule.name,
            "micro_batches": recipe.micro_batches,
            "virtual_stages": recipe.schedule.virtual_stages,
        }
        mesh = {axis: degree for axis, degree in recipe.options.degrees.items() if degree > 1}
        return {"mesh": mesh, "schedule": schedule, "preset": [str(recipe.kind)], "tree": {}}
    return describe(strategy, setting.model)


def _work(
    job: Job,
    recipe: Recipe,
    setting: Setting,
    accounts: Sequence[RankAccount],
    sent: dict[str, float],
) -> Work:
    replica = sum(account.trained for account in accounts) / recipe.holders
    return Work(
        samples=float(job.data.global_batch),
        flop=setting.model_flop(),
        network_bytes=math.fsum(sent.values()) * len(accounts),
        gradient_bytes=replica * _GRADIENT_BYTES if recipe.backward else 0.0,
    )


def _per_step(use: StageUse, steps: int) -> StageUse:
    energy_j = None if use.energy_j is None else use.energy_j / steps
    return StageUse(busy_s=use.busy_s / steps, exposed_s=use.exposed_s / steps, energy_j=energy_j)


def _result(
    setting: Setting,
    recipe: Recipe,
    run: Run,
    use: TrainingUse,
    *,
    accounts: Sequence[RankAccount],
    capacity_bytes: float,
) -> Result:
    job = setting.job
    step_s = run.wall_s / max(run.iterations, 1)
    ranks, batch = recipe.options.ranks, job.data.global_batch
    tokens_per_s = batch * job.data.sequence_length / step_s if setting.has_tokens else None
    available = step_s * peak_flop_per_s(job.cluster, ranks, setting.peak_precision)
    node = job.cluster.pools[0].node
    nodes = [ranks / node.devices]
    energy = _energy(job, run)
    known_j = None if math.isnan(energy.total) else energy.total
    peak = max(account.peak_bytes for account in accounts)
    return Result(
        model=setting.model.name,
        cluster=f"{nodes[0]:.10g} x {node.name}",
        strategy=_strategy(setting, recipe),
        ranks=ranks,
        step_time_s=step_s,
        samples_per_s=batch / step_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_device=None if tokens_per_s is None else tokens_per_s / ranks,
        mfu=setting.model_flop() / available,
        hfu=setting.model_flop() / available,
        mfu_precision=setting.peak_precision.value,
        model_flop_per_step=setting.model_flop(),
        parameters=_parameters(accounts, recipe),
        memory=MemoryUse(
            peak_bytes=peak,
            capacity_bytes=capacity_bytes,
            fits=True,
            by_category={"process": peak},
        ),
        time_s=_time(use, accounts, step_s),
        energy_j=energy,
        average_power_w=run.average_w if run.meters else math.nan,
        pue=job.cluster.site.pue,
        peak_power_w=_peak_w(run),
        cost_usd=None if known_j is None else cost_usd(job.cluster, nodes, step_s, known_j),
        embodied_gco2e=embodied_gco2e(job, nodes, step_s),
        carbon_gco2e=None if known_j is None else carbon_gco2e(job, nodes, step_s, known_j),
        provenance=_provenance(run),
        simulation=SimulationSize(
            tasks=0, events=0, rank_classes=len(accounts), compile_s=0.0, run_s=0.0
        ),
        assumed=(*run.notes, *(f"not read: {line}" for line in run.missing)),
        training=use,
        workload=str(job.workload),
    )


def _parameters(accounts: Sequence[RankAccount], recipe: Recipe) -> int:
    """Return the elements of the model; parameters replicated over tp count once."""
    copies = sum(each.copies for each in accounts) // recipe.options.tp
    return (sum(each.parameters for each in accounts) + copies) // recipe.holders


def _time(use: TrainingUse, accounts: Sequence[RankAccount], step_s: float) -> TimeParts:
    """Return the parts of a step, mean over ranks; that of the update is of the last steps."""
    updates = [
        span.end_s - span.begin_s
        for account in accounts
        for step in account.steps
        for span in step
        if span.what == "optimizer"
    ]
    update_s = statistics.fmean(updates) if updates else 0.0
    stages = use.stages
    computing_s = stages["computing"].exposed_s if stages else step_s
    waiting_s = stages["communicating"].exposed_s if stages else 0.0
    bubble_s = min(_bubble_s(accounts), waiting_s)
    return TimeParts(
        compute=max(0.0, computing_s - update_s),
        recomputation=0.0,
        exposed_communication=waiting_s - bubble_s,
        exposed_materials=stages["materials"].exposed_s if stages else 0.0,
        bubble=bubble_s,
        optimizer=min(update_s, computing_s),
        other=0.0,
    )


def _bubble_s(accounts: Sequence[RankAccount]) -> float:
    """Return a rank's wait in a step for other pipeline stages, mean over the last steps. [s]

    What they send takes part of it, which a rank that waits cannot tell from the rest.
    """
    steps = [step for account in accounts for step in account.steps]
    waits = [
        span.end_s - span.begin_s
        for step in steps
        for span in step
        if span.kind == "waiting" and span.what == STAGES_WAITED
    ]
    return math.fsum(waits) / max(len(steps), 1)


def _energy(job: Job, run: Run) -> EnergyUse:
    """Return the energy of a step with the site's overhead; NaN where nothing was read."""
    steps = max(run.iterations, 1)
    pue = job.cluster.site.pue
    total = run.energy_j / steps * pue if run.meters else math.nan
    by_stage = {
        name: math.nan if use.energy_j is None else use.energy_j / steps * pue
        for name, use in run.stages.items()
    } or dict.fromkeys(STAGES, math.nan)
    return EnergyUse(total=total, by_stage=by_stage, static=math.nan, dynamic=math.nan)


def _peak_w(run: Run) -> float:
    """Return the highest sum of the series of all meters that count."""
    counted = {reading.domain for reading in run.counted}
    peaks = [max(series.watts) for series in run.power if series.domain in counted and series.watts]
    return math.fsum(peaks) if peaks else math.nan


def _provenance(run: Run) -> dict[str, Evidence]:
    measured = Evidence(evidence="measured", share={"measured": 1.0}, note="of this run")
    found = {"step_time_s": measured, "memory.peak_bytes": measured}
    if run.origin is RunOrigin.ESTIMATED:
        note = "estimated from processor time: nothing here reads energy"
        found["energy_j"] = Evidence(evidence="pooled", share={"pooled": 1.0}, note=note)
    elif run.meters:
        found["energy_j"] = measured
    return found
