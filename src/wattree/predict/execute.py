"""A strategy of a job → its executed step: compiled, and run by the executor."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from wattree.accounts.executed import ExecutedStep
from wattree.accounts.expansion import spilled_share
from wattree.accounts.fabric import Rules
from wattree.accounts.overhead import process_bytes, strategy_groups_bytes
from wattree.accounts.steady import repeats_of
from wattree.compiler import Compilation, compile_job
from wattree.lowering.placed import PlacedJob
from wattree.lowering.setting import Setting
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import Trace


def executed(
    setting: Setting,
    strategy: Strategy,
    *,
    fold: bool,
    detail: bool,
    rules: Rules,
    once: bool = False,
) -> ExecutedStep:
    """Return the step of one strategy of a job; arguments as for `predicted`.

    What stages do again and again, micro-batch after micro-batch, is in the trace only `once` if
    asked for, and if it is found to repeat itself exactly.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    run_s, began = 0.0, time.perf_counter()
    how: dict[str, Any] = {"fold": fold, "detail": detail}
    longer_than = 0 if once and _may_repeat(setting, strategy) else None
    while True:
        compilation = compilation_of(setting, strategy, longer_than=longer_than, **how)
        compiled = time.perf_counter()
        trace = rules.execute(compilation.graph)
        run_s += time.perf_counter() - compiled
        if compilation.turns is None:
            break
        repeats = repeats_of(trace, compilation.turns)
        if repeats is not None:
            trace = replace(trace, repeats=repeats)
            break
        longer_than = compilation.turns.turn
    spilled = 0.0
    if strategy.traffic.offload.overflow is not None:
        # Memory use depends on no bandwidth, so the first run shows the overflow.
        spilled = _spilled(setting, strategy, trace)
    if spilled > 0:
        compilation = compilation_of(setting, strategy, spilled=spilled, **how)
        trace = rules.execute(compilation.graph)
    return ExecutedStep(
        setting=setting,
        strategy=strategy,
        compilation=compilation,
        trace=trace,
        spilled=spilled,
        detail=detail,
        compile_s=time.perf_counter() - began - run_s,
        run_s=run_s,
    )


def _may_repeat(setting: Setting, strategy: Strategy) -> bool:
    """Return whether the step is only what stages repeat, all of them as often in the same time.

    Replicas of slower devices have turns of their own until the end of the step.
    """
    offload, cluster = strategy.traffic.offload, setting.job.cluster
    is_other = bool(offload.tiers) or offload.overflow is not None or len(strategy.meshes) > 1
    is_uneven = bool(cluster.slowdown) or bool(cluster.slow_links)
    return not is_other and not is_uneven and setting.job.data.loader is None


def compilation_of(
    setting: Setting,
    strategy: Strategy,
    *,
    fold: bool = True,
    detail: bool = True,
    spilled: float = 0.0,
    longer_than: int | None = None,
) -> Compilation:
    """Return the compiled step of one strategy of a job.

    Args:
        setting: Inputs shared by all strategies of the job.
        fold: One rank class for all ranks that do the same.
        detail: A task per operator; otherwise undisturbed runs are one task.
        spilled: Share of what is on the devices that overflows to expanded memory.
        longer_than: As for `compile_job`.

    Raises:
        StrategyError: It does not fit model or cluster.
    """
    job = PlacedJob.of(setting, strategy, spilled=spilled)
    return compile_job(job, setting.job.cluster, fold=fold, detail=detail, longer_than=longer_than)


def written_out(setting: Setting, strategy: Strategy | StrategyOptions) -> Strategy:
    """Return a strategy with its tree."""
    if isinstance(strategy, Strategy):
        return strategy
    batch = setting.job.data.global_batch
    return strategy_of(strategy, model=setting.model, global_batch=batch)


def _spilled(setting: Setting, strategy: Strategy, trace: Trace) -> float:
    """Return the share of the fullest device's contents that overflows."""
    node = setting.job.cluster.node
    groups = float(strategy_groups_bytes(strategy, node, setting).max())
    footprint = process_bytes(trace.peak_bytes.max(), setting, node.device, groups)
    return float(spilled_share(footprint, node.device.memory_bytes, strategy.traffic.offload))
