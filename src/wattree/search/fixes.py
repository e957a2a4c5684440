"""The cheapest changes to a strategy that make it fit in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from pathlib import Path
from typing import Any

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import Estimates, Shared, estimate
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.job import Job
from wattree.job.offers import offer_of
from wattree.job.optimizers import MATRIX_OPTIMIZERS
from wattree.predict import Prediction, Setting, predicted, setting_of
from wattree.search.balance import balanced_cuts
from wattree.search.placements import accesses_expanded_memory
from wattree.strategy import StrategyOptions
from wattree.trace import MemoryFix

#: Changes of a strategy by name, each tried alone and then with each other.
Change = tuple[str, StrategyOptions]
#: Key of a strategy -> its other value.
Keys = Mapping[str, Any]

#: What makes way for another axis, in this order.
_REPLICAS = ("dp", "fsdp")
#: What goes with a wider axis.
_WITH: Mapping[str, dict[str, int]] = {
    "pp": {"virtual_stages": 1},
    "tp": {"sequence_parallel": True},
}
_DEEPER = ("zero1", "zero2", "zero3")
#: Shardings of software that moves parameters to the host with the optimizer's state.
_FSDP = frozenset({"zero2", "zero3", "hybrid"})


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


def _changes(setting: Setting, options: StrategyOptions) -> Iterator[Change]:
    """Yield every single change that can save memory and that `options` admit."""
    for name, keys in _keys(setting, options):
        if (changed := _admitted(options, keys)) is not None:
            yield name, changed


def _admitted(options: StrategyOptions, keys: Keys) -> StrategyOptions | None:
    """Return `options` with other values; None if they exclude each other."""
    try:
        return options.changed(**keys)
    except StrategyError:
        return None


def _keys(  # noqa: C901 - one entry per kind of change
    setting: Setting, options: StrategyOptions
) -> Iterator[tuple[str, Keys]]:
    """Yield every single change that can save memory, as values of keys."""
    if options.memory.recompute == "none":
        if not setting.software.fused_attention:
            yield "recompute attention", {"recompute": "selective"}
        yield "recompute every layer", {"recompute": "full"}
    elif options.memory.recompute != "full":
        yield "recompute every layer", {"recompute": "full"}
    if (
        options.tp > 1
        and not options.parallelism.sequence_parallel
        and not options.phantoms.enabled
    ):
        yield "sequence parallelism", {"sequence_parallel": True}
    if options.replicas * options.cp > 1 and options.memory.sharding != "hybrid":
        known = (
            _DEEPER.index(options.memory.sharding) + 1 if options.memory.sharding in _DEEPER else 0
        )
        for sharding in _DEEPER[known:]:
            yield sharding, {"sharding": sharding}
    if options.pipeline.micro_batch > 1 and options.pipeline.micro_batch % 2 == 0:
        half = options.pipeline.micro_batch // 2
        yield f"micro-batch {half}", {"micro_batch": half}
        if half > 1:
            yield "micro-batch 1", {"micro_batch": 1}
    yield from _elsewhere(setting, options)
    yield from _cuts(setting, options)
    # Phantom layers over more ranks are again another function.
    for axis in ("pp", "cp") if options.phantoms.enabled else ("tp", "pp", "cp"):
        for factor in (2, 4):
            if (wider := _wider(options, axis, factor)) is not None:
                yield f"{axis} {wider[axis]}", wider


def _elsewhere(setting: Setting, options: StrategyOptions) -> Iterator[tuple[str, Keys]]:
    """Yield what other memory can hold."""
    if (keys := _host_keys(setting, options)) is not None:
        both = "parameters and " * ("parameters" in host_state(setting))
        yield f"{both}optimizer state in host memory", keys
    offload = options.traffic.offload
    if accesses_expanded_memory(setting.job.cluster) and offload.overflow is None:
        traffic = replace(options.traffic, offload=replace(offload, overflow="cxl"))
        yield "overflow to expanded memory", {"traffic": traffic}


def on_host(setting: Setting, options: StrategyOptions) -> StrategyOptions | None:
    """Return `options` with the optimizer on the host, where the node says how fast that is."""
    keys = _host_keys(setting, options)
    return None if keys is None else _admitted(options, keys)


def _host_keys(setting: Setting, options: StrategyOptions) -> Keys | None:
    offload, cluster = options.traffic.offload, setting.job.cluster
    if offload.optimizer or cluster.is_mixed or cluster.node.host.memory_bytes_per_s is None:
        return None
    if setting.job.optimizer in MATRIX_OPTIMIZERS:
        return None
    moved = replace(offload, optimizer="host")
    if "parameters" in host_state(setting):
        if options.memory.sharding not in _FSDP:
            return None
        moved = replace(moved, parameters="host")
    return {"traffic": replace(options.traffic, offload=moved)}


def host_state(setting: Setting) -> tuple[str, ...]:
    """Return what waits in host memory where the software has optimizer state there."""
    offer = offer_of(setting.job.taken_software)
    return ("optimizer",) if offer is None else offer.host


def _cuts(setting: Setting, options: StrategyOptions) -> Iterator[tuple[str, Keys]]:
    """Yield the cut of a pipeline over pools that suits their speed, if it has none."""
    if setting.job.cluster.is_mixed and options.pipeline.stage_layers is None:
        degrees = Degrees.of([options], setting.job.data.global_batch)
        for cut, _ in balanced_cuts(setting, options, degrees, Shared()):
            layers = cut.pipeline.stage_layers
            yield f"stage_layers {list(layers or ())}", {"stage_layers": layers}


def _wider(options: StrategyOptions, axis: str, factor: int) -> dict[str, int] | None:
    """Return a wider axis and so many fewer replicas, as values of keys."""
    for replicas in _REPLICAS:
        have = options.value(replicas)
        if have % factor == 0:
            wider = {axis: options.value(axis) * factor, replicas: have // factor}
            return wider | _WITH.get(axis, {})
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
