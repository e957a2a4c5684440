"""Every legal strategy of a job as arrays: no object per strategy, however many there are.

A space is cut into groups of strategies that share their options (sharding, recomputation,
sequence parallelism, schedule) and differ in degrees, which is how the closed form takes them.
Strategies that mean the same are listed once: no sequence parallelism without tensor
parallelism or without hidden states of positions, no sharding over one replica, no pipeline
schedule without a pipeline, hybrid sharding only where some replicas do not share shards.
Selective recomputation is listed only where attention is not fused: a fused kernel keeps no
scores, so nothing would be saved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.distinct import distinct
from wattree.graph import ModelGraph
from wattree.lowering.split_rules import has_split_positions, illegal_by_rule, split_rules
from wattree.predict import Degrees, Setting, Shared
from wattree.search.balance import balanced_cuts
from wattree.search.limits import Limits
from wattree.search.option_sets import (
    NO_CONTEXT,
    limits_of,
    plain_options,
    recomputations,
    sharing_options,
)
from wattree.search.passes import divisors, micro_batch_sizes, virtual_stages
from wattree.search.phantom import phantom_options
from wattree.search.placements import placements_of
from wattree.strategy import (
    AXES,
    SCHEDULES,
    ULYSSES,
    Offload,
    StrategyOptions,
    Traffic,
)
from wattree.strategy.presets import schedule_of_chunks
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: Options that decide what is split.
_Kind = tuple[bool, ...]

#: Placements that leave on the device what fits there: several processes on a device support no
#: other memory, and are listed once, with any of these.
_NOTHING_MOVED = (Offload(), Offload(overflow="cxl"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyGroup:
    """Strategies that share their options.

    Attributes:
        common: What they share; its own degrees are 1, but `tp` where there are phantom layers.
        degrees: What they differ in.
    """

    common: StrategyOptions
    degrees: Degrees

    def __len__(self) -> int:
        return len(self.degrees.micro_batch)

    def options(self, index: int) -> StrategyOptions:
        """Return one strategy."""
        degrees = self.degrees
        virtual = int(degrees.virtual_stages[index])
        of_axis = {axis: int(degrees.axes[axis][index]) for axis in AXES}
        return self.common.changed(
            **of_axis,
            micro_batch=int(degrees.micro_batch[index]),
            virtual_stages=virtual,
            schedule=schedule_of_chunks(self.common.pipeline.schedule, virtual),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All legal strategies.

    Attributes:
        groups: By options.
        rejected: Reason → meshes that no strategy can use.
    """

    groups: tuple[StrategyGroup, ...]
    rejected: Mapping[str, int]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    def __iter__(self) -> Iterator[StrategyOptions]:
        for group in self.groups:
            for index in range(len(group)):
                yield group.options(index)


def enumerate_space(
    setting: Setting, *, ranks: Sequence[int] | None = None, limits: Limits | None = None
) -> Space:
    """Return every legal strategy of a job.

    Args:
        ranks: Numbers of ranks to use; all devices if None.
    """
    limits = limits_of(setting, limits or Limits())
    ranks = tuple(ranks or (setting.job.cluster.devices,))
    model = setting.model
    rejected: Counter[str] = Counter()
    meshes = _meshes(ranks, axis_limits(model, setting.job.data.sequence_length, limits))
    meshes = _kept(meshes, _batch_splits(meshes, setting), rejected, "mesh: batch does not split")
    every_options = list(plain_options(setting, limits))
    if limits.phantom:
        every_options = list(
            phantom_options(
                model,
                distinct(_column(meshes, "tp")).tolist(),
                limits.shardings,
                recomputations(setting, limits),
            )
        )
    placements = placements_of(limits.placements, setting.job.cluster, model)
    every_options = [
        options if offload == Offload() else options.changed(traffic=Traffic(offload=offload))
        for offload in placements
        for options in every_options
    ]
    if any(offload in _NOTHING_MOVED for offload in placements) and not limits.phantom:
        every_options += sharing_options(setting, limits)
    if limits.offer is not None and not limits.phantom:
        every_options = [options for options in every_options if limits.offer.has_options(options)]
    legal = _legal_by_kind(meshes, every_options, setting, rejected)
    groups = []
    shared = Shared()
    virtual = cache(partial(virtual_stages, setting=setting, limits=limits))
    expanded: dict[tuple[object, ...], Degrees] = {}  # options have many meshes in common
    for options in every_options:
        chosen = _distinct(meshes[legal[_kind(options)]], options, setting, limits)
        chosen = _offered(chosen, options, limits)
        parts = options.colocation.shares_of_batch
        if parts > 1:
            chosen = chosen[setting.job.data.global_batch % (_replicas(chosen) * parts) == 0]
        if len(chosen):
            key = chosen.tobytes(), options.colocation, options.pipeline.schedule
            if key not in expanded:
                expanded[key] = _expanded(chosen, options, setting, limits, virtual)
            groups.append(StrategyGroup(common=options, degrees=expanded[key]))
            if setting.job.cluster.is_mixed and limits.cuts and not limits.phantom:
                cuts = balanced_cuts(setting, options, groups[-1].degrees, shared)
                groups += [StrategyGroup(common=cut, degrees=degrees) for cut, degrees in cuts]
    return Space(groups=tuple(g for g in groups if len(g)), rejected=dict(rejected))


# ---------------------------------------------------------------- meshes: rows of degrees by AXES


def axis_limits(model: ModelGraph, sequence: int, limits: Limits) -> dict[str, Sequence[int]]:
    """Return the degrees of each axis that some operator, or the number of layers, admits."""
    allowed = dict(limits.axes)
    rules = split_rules(model, StrategyOptions(tp=2, cp=2, ep=2), sequence)
    experts = [rule for rule in rules if rule.what == "experts"]
    most = {
        "tp": min((rule.units for rule in rules if rule.axes == ("tp",)), default=1),
        "cp": max(sequence // 2, 1) if has_split_positions(model) else 1,
        "ep": max((rule.units for rule in experts), default=1),
        "pp": model.layers + 2,
    }
    for axis, largest in most.items():
        within = allowed.get(axis, range(1, largest + 1))
        allowed[axis] = [degree for degree in within if degree <= largest]
    return allowed


def _meshes(ranks: Sequence[int], allowed: Mapping[str, Sequence[int]]) -> Integers:
    """Return every factorization of each of `ranks`, shape `(n, axes)`, in the order of `AXES`."""
    found = []
    for total in ranks:
        left = np.array([total])
        rows = np.zeros((1, 0), dtype=np.int64)
        for axis in AXES:
            last = axis == AXES[-1]
            degrees = np.array(divisors(total))
            fits = left[:, None] % degrees[None, :] == 0
            if last:
                fits = left[:, None] == degrees[None, :]
            if axis in allowed:
                fits &= np.isin(degrees, np.array(allowed[axis]))[None, :]
            row, column = np.nonzero(fits)
            rows = np.concatenate([rows[row], degrees[column][:, None]], axis=1)
            left = left[row] // degrees[column]
        found.append(rows)
    return np.concatenate(found)


def _column(meshes: Integers, axis: str) -> Integers:
    return meshes[:, AXES.index(axis)]


def _replicas(meshes: Integers) -> Integers:
    return _column(meshes, "dp") * _column(meshes, "fsdp") * _column(meshes, "ep")


def _batch_splits(meshes: Integers, setting: Setting) -> Flags:
    return np.asarray(setting.job.data.global_batch % _replicas(meshes) == 0)


def _kept(meshes: Integers, legal: Flags, rejected: Counter[str], reason: str) -> Integers:
    if turned_away := int((~legal).sum()):
        rejected[reason] += turned_away
    return meshes[legal]


def _kind(options: StrategyOptions) -> _Kind:
    """Return the options that decide what is split."""
    by_heads = options.parallelism.context == ULYSSES
    return (
        options.parallelism.sequence_parallel,
        options.parallelism.expert_over_tensor,
        by_heads,
        options.parallelism.tensor_pairs,
        options.phantoms.enabled,
    )


def _legal_by_kind(
    meshes: Integers,
    every_options: Sequence[StrategyOptions],
    setting: Setting,
    rejected: Counter[str],
) -> dict[_Kind, Flags]:
    """Return for each kind of options which meshes every operator can be split over.

    A mesh that is legal under no options is counted with the first reason found.
    """
    legal: dict[_Kind, Flags] = {}
    reasons = np.full(len(meshes), "", dtype=object)
    for options in every_options:
        if _kind(options) in legal:
            continue
        found = np.ones(len(meshes), dtype=bool)
        for reason, broken in _broken(meshes, options, setting):
            reasons[broken & (reasons == "")] = f"mesh: {reason}"
            found &= ~broken
        legal[_kind(options)] = found
    if not legal:
        return legal
    nowhere = ~np.logical_or.reduce(list(legal.values()))
    rejected.update(Counter(reasons[nowhere].tolist()))
    return legal


def _broken(
    meshes: Integers, options: StrategyOptions, setting: Setting
) -> Iterator[tuple[str, Flags]]:
    """Yield each rule's reason and the meshes that break it."""
    axes = {axis: _column(meshes, axis) for axis in AXES}
    sequence = setting.job.data.sequence_length
    wide = options.changed(tp=2, cp=2, ep=2, processes_per_device=1)
    for rule, broken in illegal_by_rule(split_rules(setting.model, wide, sequence), axes):
        yield rule.reason, broken
    # Causal masks are balanced by giving each rank an early and a late piece of the sample.
    uneven = (axes["cp"] > 1) & (sequence % (2 * axes["cp"]) != 0)
    yield "positions do not divide over twice cp", uneven


def _distinct(
    meshes: Integers, options: StrategyOptions, setting: Setting, limits: Limits
) -> Integers:
    """Return the meshes under which the options mean something of their own."""
    tensor, fsdp = _column(meshes, "tp"), _column(meshes, "fsdp")
    copies = _replicas(meshes) * _column(meshes, "cp")  # ranks that hold the same parameters
    keep = np.ones(len(meshes), dtype=bool)
    alone = options.parallelism.context == NO_CONTEXT and NO_CONTEXT not in (limits.contexts or ())
    keep &= _column(meshes, "cp") == 1 if alone else True
    if options.parallelism.context != NO_CONTEXT:
        keep &= _column(meshes, "cp") > 1
    if (
        options.parallelism.sequence_parallel
        or options.parallelism.tensor_pairs
        or not options.parallelism.expert_over_tensor
    ):
        keep &= tensor > 1
    if options.parallelism.expert_over_tensor and not limits.positions and setting.has_experts:
        keep &= tensor == 1
    if options.phantoms.enabled:
        keep &= tensor == options.tp
    if options.colocation.processes > 1:
        keep &= _column(meshes, "dp") == meshes.prod(axis=1)
    if options.memory.sharding == "hybrid":
        keep &= (fsdp > 1) & (copies > fsdp)  # otherwise it is `none` or `zero3`
    else:
        keep &= fsdp == 1
        if options.memory.sharding != "none":
            keep &= copies > 1
    if options.pipeline.schedule != "1f1b":
        keep &= _column(meshes, "pp") > 1
        if PIPELINE_SCHEDULES[options.pipeline.schedule].even_stages:
            keep &= _column(meshes, "pp") % 2 == 0
    return meshes[keep]


def _offered(meshes: Integers, options: StrategyOptions, limits: Limits) -> Integers:
    """Return the meshes over which the software can run such options."""
    if limits.offer is None or limits.phantom:
        return meshes
    for axis in AXES:
        if limits.offer.excludes(options, axis):
            kept = _column(meshes, axis) == 1
            if not limits.offer.excludes(options, axis, holders=False):
                holders = [_column(meshes, each) for each in ("dp", "fsdp", "cp", "ep")]
                kept |= np.prod(holders, axis=0) == 1
            meshes = meshes[kept]
    for axis in limits.offer.alone:
        others = [_column(meshes, each) for each in ("tp", "cp", "pp", "ep") if each != axis]
        meshes = meshes[(_column(meshes, axis) == 1) | (np.prod(others, axis=0) == 1)]
    return meshes


# ---------------------------------------------------------------- micro-batches, chunks


def _expanded(
    meshes: Integers,
    options: StrategyOptions,
    setting: Setting,
    limits: Limits,
    virtual_stages: Callable[[int, str], Sequence[int]],
) -> Degrees:
    """Return the meshes with every micro-batch size and number of virtual stages."""
    batch = options.colocation.process_batch(setting.job.data.global_batch)
    shares = batch // _replicas(meshes)
    row, micro_batch = _with_choices(
        shares,
        {int(s): micro_batch_sizes(int(s), limits, setting) for s in distinct(shares)},
    )
    meshes, micro_batches = meshes[row], shares[row] // micro_batch
    stages = _column(meshes, "pp")
    row, virtual = _with_choices(
        stages,
        {int(p): virtual_stages(int(p), options.pipeline.schedule) for p in distinct(stages)},
    )
    if limits.offer is not None and limits.offer.pipelines:
        runs = stages[row] == 1
        for chunks in distinct(virtual):
            name = schedule_of_chunks(options.pipeline.schedule, int(chunks))
            given = stages[row], int(chunks), micro_batches[row]
            runs |= (virtual == chunks) & limits.offer.runs_pipelines(name, *given)
        row, virtual = row[runs], virtual[runs]
    return Degrees(
        axes={axis: _column(meshes, axis)[row] for axis in AXES},
        micro_batch=micro_batch[row],
        virtual_stages=virtual,
        micro_batches=micro_batches[row],
        schedule=np.full(len(row), SCHEDULES.index(options.pipeline.schedule)),
    )


def _with_choices(
    values: Integers, choices: Mapping[int, Sequence[int]]
) -> tuple[Integers, Integers]:
    """Return (row, choice) for every row and each of the choices that its value has."""
    known = np.array(sorted(choices))
    lists = [np.array(choices[int(value)], dtype=np.int64) for value in known]
    lengths = np.array([len(entries) for entries in lists], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    which = np.searchsorted(known, values)
    counts = lengths[which]
    row = np.repeat(np.arange(len(values)), counts)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = np.concatenate(lists) if lists else np.zeros(0, np.int64)
    return row, flat[starts[which][row] + inside] if len(row) else np.zeros(0, np.int64)
