"""The cheapest changes to a strategy that make it fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Estimates, Shared, estimate
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.job import Job
from wattree.predict import Prediction, Setting, predicted, setting_of
from wattree.search.balance import balanced_cuts
from wattree.search.placements import accesses_expanded_memory
from wattree.strategy import StrategyOptions
from wattree.trace import MemoryFix

#: Changes of a strategy by name, each tried alone and then with each other.
Change = tuple[str, StrategyOptions]

#: What makes way for another axis, in this order.
_REPLICAS = ("dp", "fsdp")
_DEEPER = ("zero1", "zero2", "zero3")


def memory_fixes(
    setting: Setting, options: StrategyOptions, *, most: int = 3
) -> tuple[MemoryFix, ...]:
    """Return changes after which the job fits, the one with the shortest step first.

    Single changes are tried first, then pairs of them; the closed form picks which are worth
    simulating. Empty if neither is enough.

    Args:
        options: The strategy that does not fit.
    """
    single = list(_legal(setting, _changes(setting, options)))
    found = _fitting(setting, [change for change in single if _may_fit(setting, change[1])])
    if len(found) < most:
        pairs = _legal(setting, _pairs(setting, single))
        likely = [change for change in pairs if _may_fit(setting, change[1])]
        known = {fix.change for fix in found}
        # A pair that contains a change which is enough alone would only cost more.
        likely = [c for c in likely if not any(part in known for part in c[0].split(" and "))]
        found += _fitting(setting, _most_likely(setting, likely, 2 * most))
    found.sort(key=lambda fix: fix.step_time_s)
    return tuple(found[:most])


def with_memory_fixes(
    job: Job, prediction: Prediction, *, calibration: str | Path | None = None
) -> Prediction:
    """Return `prediction` with fixes if its memory does not fit.

    Unchanged if it fits, or if the job's strategy is a tree written by hand, which has no
    options to change.

    Args:
        calibration: File of constants that it was predicted with; the shipped one if None.
    """
    memory, options = prediction.result.memory, prediction.strategy
    if memory.fits or not isinstance(options, StrategyOptions):
        return prediction
    setting = setting_of(job, load_calibration(calibration))
    memory = replace(memory, fixes=memory_fixes(setting, options))
    return replace(prediction, result=replace(prediction.result, memory=memory))


def _changes(  # noqa: C901 - one entry per kind of change
    setting: Setting, options: StrategyOptions
) -> Iterator[Change]:
    """Yield every single change that can save memory."""
    if options.memory.recompute == "none":
        if not setting.software.fused_attention:
            yield "recompute attention", options.changed(recompute="selective")
        yield "recompute every layer", options.changed(recompute="full")
    elif options.memory.recompute != "full":
        yield "recompute every layer", options.changed(recompute="full")
    if (
        options.tp > 1
        and not options.parallelism.sequence_parallel
        and not options.phantoms.enabled
    ):
        yield "sequence parallelism", options.changed(sequence_parallel=True)
    if options.replicas * options.cp > 1 and options.memory.sharding != "hybrid":
        known = (
            _DEEPER.index(options.memory.sharding) + 1 if options.memory.sharding in _DEEPER else 0
        )
        for sharding in _DEEPER[known:]:
            yield sharding, options.changed(sharding=sharding)
    if options.pipeline.micro_batch > 1 and options.pipeline.micro_batch % 2 == 0:
        half = options.pipeline.micro_batch // 2
        yield f"micro-batch {half}", options.changed(micro_batch=half)
        if half > 1:
            yield "micro-batch 1", options.changed(micro_batch=1)
    yield from _elsewhere(setting, options)
    yield from _cuts(setting, options)
    # Phantom layers over more ranks are again another function.
    for axis in ("pp", "cp") if options.phantoms.enabled else ("tp", "pp", "cp"):
        for factor in (2, 4):
            wider = _wider(options, axis, factor)
            if wider is not None:
                yield f"{axis} {wider.value(axis)}", wider


def _elsewhere(setting: Setting, options: StrategyOptions) -> Iterator[Change]:
    """Yield what other memory can hold."""
    if (host := on_host(setting, options)) is not None:
        yield "optimizer state in host memory", host
    offload = options.traffic.offload
    if accesses_expanded_memory(setting.job.cluster) and offload.overflow is None:
        traffic = replace(options.traffic, offload=replace(offload, overflow="cxl"))
        yield "overflow to expanded memory", options.changed(traffic=traffic)


def on_host(setting: Setting, options: StrategyOptions) -> StrategyOptions | None:
    """Return `options` with the optimizer on the host, where the node says how fast that is."""
    offload, cluster = options.traffic.offload, setting.job.cluster
    if offload.optimizer or cluster.is_mixed or cluster.node.host.memory_bytes_per_s is None:
        return None
    traffic = replace(options.traffic, offload=replace(offload, optimizer="host"))
    return options.changed(traffic=traffic)


def _cuts(setting: Setting, options: StrategyOptions) -> Iterator[Change]:
    """Yield the cut of a pipeline over pools that suits their speed, if it has none."""
    if setting.job.cluster.is_mixed and options.pipeline.stage_layers is None:
        degrees = Degrees.of([options], setting.job.data.global_batch)
        for cut, _ in balanced_cuts(setting, options, degrees, Shared()):
            yield f"stage_layers {list(cut.pipeline.stage_layers or ())}", cut


def _wider(options: StrategyOptions, axis: str, factor: int) -> StrategyOptions | None:
    """Return `options` with a wider axis and so many fewer replicas."""
    for replicas in _REPLICAS:
        have = options.value(replicas)
        if have % factor == 0:
            wider = {axis: options.value(axis) * factor, replicas: have // factor}
            if axis == "pp":
                wider["virtual_stages"] = 1
            changed = options.changed(**wider)
            return changed.changed(sequence_parallel=True) if axis == "tp" else changed
    return None


def _pairs(setting: Setting, single: list[Change]) -> Iterator[Change]:
    """Yield each change with each change that is possible after it."""
    seen: set[StrategyOptions] = set()
    for (name, options), (other, _) in combinations(single, 2):
        for follow, both in _changes(setting, options):
            if follow == other and both not in seen:
                seen.add(both)
                yield f"{name} and {follow}", both


def _legal(setting: Setting, changes: Iterable[Change]) -> Iterator[Change]:
    """Yield the changes whose batch splits; other misfits show when they are compiled."""
    batch = setting.job.data.global_batch
    for name, options in changes:
        share = options.replicas * options.pipeline.micro_batch * options.colocation.shares_of_batch
        if batch % share == 0:
            yield name, options


def _may_fit(setting: Setting, options: StrategyOptions) -> bool:
    if not is_expressible(options, setting.job.cluster):
        return True  # only simulation can tell
    if (found := _estimated(setting, options)) is None:
        return False
    device = setting.job.cluster.pools[found.pool[0]].node.device
    need = found.process_bytes * options.colocation.processes
    left = need[0] * (1.0 - found.spilled[0])
    # Simulation decides close calls.
    return bool(left <= 1.01 * device.memory_bytes and found.tier_fits[0])


def _most_likely(setting: Setting, changes: Iterable[Change], most: int) -> list[Change]:
    """Return the fastest changes that fit by the closed form, and the leanest that it cannot tell.

    It counts what is copied to the host as if it stayed on the device.
    """
    known: list[tuple[float, Change]] = []
    open_: list[tuple[float, Change]] = []
    for change in changes:
        if (found := _estimated(setting, change[1])) is None:
            continue
        if is_expressible(change[1], setting.job.cluster):
            known.append((float(found.step_time_s[0]), change))
        else:
            open_.append((float(found.process_bytes[0]), change))
    first = itemgetter(0)
    chosen = [*sorted(known, key=first)[:most], *sorted(open_, key=first)[:most]]
    return [change for _, change in chosen]


def _estimated(setting: Setting, options: StrategyOptions) -> Estimates | None:
    """Return the closed form of a change; None if model or cluster do not admit it."""
    try:
        return estimate(setting, options)
    except StrategyError:
        return None


def _fitting(setting: Setting, changes: Iterable[Change]) -> list[MemoryFix]:
    """Simulate the changes and return those that fit."""
    fixes = []
    for name, options in changes:
        try:
            result = predicted(setting, options, detail=False).result
        except StrategyError:
            continue  # the model or the cluster does not admit it
        if result.memory.fits:
            fixes.append(
                MemoryFix(
                    change=name,
                    peak_bytes=result.memory.peak_bytes,
                    step_time_s=result.step_time_s,
                )
            )
    return fixes
