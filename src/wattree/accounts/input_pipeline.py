"""Find the bottleneck of the input pipeline, and the extra capacity that the step needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from wattree.accounts.breakdown import starved_span, tasks_by_class, time_parts
from wattree.accounts.executed import ExecutedStep
from wattree.cost.loading import PARTS, copy_bytes_per_s, first_batch_s, storage_bytes_per_s
from wattree.lowering.loading import Loading
from wattree.trace import MaterialsFix, MaterialsUse
from wattree.units import format_quantity

#: Waits below this share of a step are rounding.
_NOTHING = 1e-6
#: Rank classes that are asked how long they wait: the first, as others wait alike.
_MOST_CLASSES = 256


def core_times_s(loading: Sequence[Loading]) -> tuple[float, ...]:
    """Return the core time of loading one micro-batch for one rank, by pool. [s]"""
    return tuple(each.core_s for each in loading)


def materials_use(step: ExecutedStep, waits_s: float) -> MaterialsUse | None:
    """Return the effect of data loading on a step; None where the job does not describe it.

    Args:
        waits_s: How long its slowest ranks wait for data. [s]
    """
    loading, global_batch = step.compilation.loading, step.batch
    if not loading:
        return None
    step_s, exposed_s = step.step_s, _starved_s(step, waits_s)
    slowest: dict[str, tuple[float, Loading]] = {}
    for each in loading:
        for part, time_s in each.times_s(step.loaded).items():
            if time_s > slowest.get(part, (0.0, each))[0]:
                slowest[part] = time_s, each
    rates = {part: global_batch / slowest[part][0] for part in PARTS if part in slowest}
    own_s = max(step_s - exposed_s, 0.0)
    if own_s > 0:
        rates["step"] = global_batch / own_s
    bound = min(slowest, key=lambda part: -slowest[part][0], default="none")
    waits = exposed_s > _NOTHING * step_s
    return MaterialsUse(
        samples_per_s=rates,
        bound=bound,
        is_input_bound=waits,
        exposed_s=exposed_s,
        first_batch_s=max(
            first_batch_s(each.loader, each.node, each.samples, on_node=each.on_node)
            for each in loading
        ),
        host_memory_bytes=max(each.on_node * each.host_bytes for each in loading),
        fixes=_fixes(slowest, own_s) if waits else (),
    )


def _starved_s(step: ExecutedStep, slowest_s: float) -> float:
    """Return the data wait of the ranks that wait longest. [s]

    All wait alike for what is made ahead; only those that load wait for copies in their line.
    """
    trace = step.trace
    if step.compilation.loading[0].loader.copies_ahead:
        return slowest_s
    starved = starved_span(trace)
    classes = min(len(trace.graph.class_ranks), _MOST_CLASSES)
    return max(
        time_parts(trace, number, mine, starved=starved).exposed_materials
        for number, mine in enumerate(tasks_by_class(trace, classes))
    )


def _fixes(slowest: Mapping[str, tuple[float, Loading]], own_s: float) -> tuple[MaterialsFix, ...]:
    """Return what the parts would need that take longer than the step's own work, slowest first."""
    late = [
        part
        for part, (time_s, each) in slowest.items()
        if time_s > own_s * (1 + _NOTHING) or (part == "workers" and not each.loader.workers)
    ]
    late.sort(key=lambda part: -slowest[part][0])
    if not own_s:
        return ()
    found = [_fix(part, slowest[part][1], slowest[part][0] / own_s) for part in late]
    if slowest and not next(iter(slowest.values()))[1].loader.pinned:
        found.append(
            MaterialsFix(
                part="copies", change="pinned: true hides the copies", needed=1.0, found=0.0
            )
        )
    return tuple(found)


def _fix(part: str, loading: Loading, factor: float) -> MaterialsFix:
    loader, node = loading.loader, loading.node
    cores = loader.cores_of(node)
    if part == "workers":
        needed = max(ceil(max(loader.workers, 1) * factor * (1 - 1e-9)), 1)
        each = "device" if loader.processes == 1 else "process"
        words = f"{needed} workers per {each}, not {loader.workers}"
        if loader.core_s > 0 and needed * loader.processes * loading.on_node > cores:
            words += f" (more than the {cores} cores of a {node.name} run at once)"
        return MaterialsFix(part=part, change=words, needed=needed, found=loader.workers)
    if part == "cores":
        needed = ceil(cores * factor * (1 - 1e-9))
        words = f"{needed} cores on each {node.name}, not {cores}, or less core time per sample"
        return MaterialsFix(part=part, change=words, needed=needed, found=cores)
    if part == "storage":
        has = storage_bytes_per_s(loader, node)
        where = "for the cluster" if loader.storage_shared else f"on each {node.name}"
        return _rate_fix(part, f"of storage {where}", has, factor, "B/s")
    if part == "copies":
        rate = copy_bytes_per_s(loader, node)
        return _rate_fix(part, "from host to each device", rate, factor, "B/s")
    assert loader.device_decode_s is not None
    return _rate_fix(
        part, "of each device's decoder", 1 / loader.device_decode_s, factor, "samples/s"
    )


def _rate_fix(part: str, words: str, has: float, factor: float, unit: str) -> MaterialsFix:
    needed = has * factor
    change = f"{format_quantity(needed, unit)} {words}, not {format_quantity(has, unit)}"
    return MaterialsFix(part=part, change=change, needed=needed, found=has)


def notes_of_loading(step: ExecutedStep) -> tuple[str, ...]:
    """Return notes on how data loading was predicted."""
    loading, micro_batches = step.compilation.loading, step.loaded
    if not loading and not step.setting.model.own_family:
        return ("samples are on the device when needed; data.loader describes how they are loaded",)
    if not loading:
        return ("inputs are prefetched; only the first micro-batch waits for its data",)
    loader = loading[0].loader
    if not loader.workers:
        return (
            "without workers, a micro-batch is loaded after the computation before it has ended, "
            "as in a loop that reads the loss; a loop that does not wait hides part of the loading",
        )
    notes: tuple[str, ...] = (
        ("every rank" if loading[0].ranks == 1 else f"one in {loading[0].ranks} ranks")
        + " of the first stage loads data, at its mean rate; prefetched batches even out the pace "
        "within a step",
    )
    if loader.device_decode_s is not None:
        notes += (
            "decoding on the device is predicted to add no step time and to draw the power of a "
            "collective; without a hardware decoder, it delays the step by up to the decoding "
            "time, and may use threads of the host",
        )
    if loader.batches_ahead < micro_batches:
        notes += (
            f"a rank prefetches {loader.batches_ahead} micro-batches, fewer than the "
            f"{micro_batches:.0f} of its step: it may wait longer than reported",
        )
    return notes
