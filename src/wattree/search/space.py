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

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.graph import ModelGraph
from wattree.lowering.idle import has_experts
from wattree.lowering.split_rules import (
    has_attention,
    has_split_positions,
    illegal_by_rule,
    split_rules,
)
from wattree.lowering.stages import stage_misfits
from wattree.predict import Degrees, Setting, Shared
from wattree.search.balance import balanced_cuts
from wattree.search.phantom import phantom_options
from wattree.search.placements import placements_of
from wattree.strategy import (
    AXES,
    MPS,
    TIME_SLICED,
    ULYSSES,
    Offload,
    Schedule,
    StrategyOptions,
    Traffic,
)
from wattree.strategy.parts import has_stack, has_whole_states
from wattree.strategy.presets import schedule_name
from wattree.strategy.schedules import PIPELINE_SCHEDULES

__all__ = ["Group", "Limits", "Space", "device_counts", "enumerate_space"]

Integers = NDArray[np.int64]

#: Micro-batches are divisors of a replica's share up to this many samples, ...
_EVERY_DIVISOR_UP_TO = 16
#: ... and powers of two up to this many, which only small models have memory for; samples that
#: are no sequences are small, so of them every power of two and the whole share.
_POWERS_OF_TWO_UP_TO = 256

#: Meshes without context parallelism are listed with this, which is what is not chosen.
_NO_CONTEXT = StrategyOptions().parallelism.context
#: Ways of context parallelism that software has; `overlapped` is the limit of none. Attention in
#: blocks needs a fused kernel.
_CONTEXTS = ("ring", "gather", ULYSSES)
_CONTEXTS_UNFUSED = ("gather", ULYSSES)

#: Switches that decide what is split.
_Kind = tuple[bool, ...]

#: Placements that leave on the device what has room there: several processes on a device know no
#: other memory, and are listed once, beside any of these.
_NOTHING_MOVED = (Offload(), Offload(overflow="cxl"))

#: Told apart by virtual stages alone, so they share options.
_WITHOUT_NAME = ("1f1b", "interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which part of the space to list; by default all of it.

    Attributes:
        axes: Axis → degrees to try; any that are legal if it is not named.
        micro_batches: Micro-batch sizes to try; by default divisors as the module says.
        shardings, recomputations, schedules: To try; None for all recomputations. Schedules
            that few programs can run (zero-bubble, DualPipe, breadth-first) are tried if named.
        virtual_stages: Counts to try; None for all that leave no chunk empty.
        contexts: Ways of context parallelism to try; None for those that software has.
        cuts: Whether pipelines over pools of different devices are also cut by their speed.
        phantom: Only strategies with phantom layers, which train another function, instead of those
            without.
        processes: Processes on each device to try, beside which all devices hold whole replicas;
            several only where placements leave everything on the device.
        in_turn: Processes of a device take turns there (time slicing) instead of sharing it (MPS).
        placements: What lies in expanded memory that devices reach: `device` for nothing, or some
            of `placements.PLACED` joined by `+`; None for those that make sense on the cluster.
    """

    axes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    micro_batches: Sequence[int] | None = None
    shardings: Sequence[str] = ("none", "zero1", "zero2", "zero3", "hybrid")
    recomputations: Sequence[str] | None = None
    schedules: Sequence[str] = ("1f1b", "gpipe", "interleaved")
    contexts: Sequence[str] | None = None
    virtual_stages: Sequence[int] | None = None
    cuts: bool = True
    phantom: bool = False
    processes: Sequence[int] = (1,)
    in_turn: bool = False
    placements: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
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
            schedule=schedule_name(self.common.changed(virtual_stages=virtual)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All legal strategies.

    Attributes:
        groups: By options.
        rejected: Reason → meshes that no strategy can use.
    """

    groups: tuple[Group, ...]
    rejected: Mapping[str, int]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    def __iter__(self) -> Iterator[StrategyOptions]:
        for group in self.groups:
            for index in range(len(group)):
                yield group.options(index)


def device_counts(
    devices: int, node_devices: int, *, max_devices: int | None, fewer: bool
) -> tuple[int, ...]:
    """Return how many devices strategies may use, most first.

    A job uses whole nodes alike, or part of one node, and its ranks divide the devices.

    Args:
        devices: Of the cluster.
        node_devices: Of one node.
        max_devices: Use no more; None for all.
        fewer: Also try fewer than allowed.
    """
    most = devices if max_devices is None else min(max_devices, devices)
    counts = [
        n
        for n in range(most, 0, -1)
        if devices % n == 0 and (n % node_devices == 0 or node_devices % n == 0)
    ]
    return tuple(counts) if fewer else tuple(counts[:1])


def enumerate_space(
    setting: Setting, *, ranks: Sequence[int] | None = None, limits: Limits | None = None
) -> Space:
    """Return every legal strategy of a job.

    Args:
        setting: The job.
        ranks: Numbers of ranks to use; all devices if None.
        limits: Part of the space to list.
    """
    limits = limits or Limits()
    ranks = tuple(ranks or (setting.job.cluster.devices,))
    model = setting.model
    rejected: Counter[str] = Counter()
    meshes = _meshes(ranks, _axis_limits(model, setting.job.data.sequence_length, limits))
    meshes = _kept(meshes, _batch_splits(meshes, setting), rejected, "mesh: batch does not split")
    every_options = list(_plain_options(setting, limits))
    if limits.phantom:
        every_options = list(
            phantom_options(
                model,
                np.unique(_column(meshes, "tp")).tolist(),
                limits.shardings,
                _recomputations(setting, limits),
            )
        )
    placements = placements_of(limits.placements, setting.job.cluster, model)
    every_options = [
        options if offload == Offload() else options.changed(traffic=Traffic(offload=offload))
        for offload in placements
        for options in every_options
    ]
    if any(offload in _NOTHING_MOVED for offload in placements) and not limits.phantom:
        every_options += _sharing_options(setting, limits)
    legal = _legal_by_kind(meshes, every_options, setting, rejected)
    groups = []
    shared = Shared()
    for options in every_options:
        chosen = _distinct(meshes[legal[_kind(options)]], options, limits)
        parts = options.colocation.shares_of_batch
        if parts > 1:
            chosen = chosen[setting.job.data.global_batch % (_replicas(chosen) * parts) == 0]
        if len(chosen):
            groups.append(_expanded(chosen, options, setting, limits))
            if setting.job.cluster.is_mixed and limits.cuts and not limits.phantom:
                cuts = balanced_cuts(setting, options, groups[-1].degrees, shared)
                groups += [Group(common=cut, degrees=degrees) for cut, degrees in cuts]
    return Space(groups=tuple(g for g in groups if len(g)), rejected=dict(rejected))


# ---------------------------------------------------------------- meshes: rows of degrees by AXES


def _axis_limits(model: ModelGraph, sequence: int, limits: Limits) -> dict[str, Sequence[int]]:
    """Return the degrees of each axis that some operator, or the number of layers, admits."""
    allowed = dict(limits.axes)
    rules = split_rules(model, StrategyOptions(tp=2, cp=2, ep=2), sequence)
    experts = [rule for rule in rules if rule.what == "experts"]
    most = {
        "tp": min((rule.units for rule in rules if rule.axes == ("tp",)), default=1),
        "cp": sequence // 2 if has_split_positions(model) else 1,
        "ep": max((rule.units for rule in experts), default=1),
        "pp": model.layers + 2,
    }
    for axis, largest in most.items():
        within = allowed.get(axis, range(1, largest + 1))
        allowed[axis] = [degree for degree in within if degree <= largest]
    return allowed


def _meshes(ranks: Sequence[int], allowed: Mapping[str, Sequence[int]]) -> Integers:
    """Return every factorisation of each of `ranks`, shape `(n, axes)`, in the order of `AXES`."""
    found = []
    for total in ranks:
        left = np.array([total])
        rows = np.zeros((1, 0), dtype=np.int64)
        for axis in AXES:
            last = axis == AXES[-1]
            divisors = np.array(_divisors(total))
            fits = left[:, None] % divisors[None, :] == 0
            if last:
                fits = left[:, None] == divisors[None, :]
            if axis in allowed:
                fits &= np.isin(divisors, np.array(allowed[axis]))[None, :]
            row, column = np.nonzero(fits)
            rows = np.concatenate([rows[row], divisors[column][:, None]], axis=1)
            left = left[row] // divisors[column]
        found.append(rows)
    return np.concatenate(found)


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _column(meshes: Integers, axis: str) -> Integers:
    return meshes[:, AXES.index(axis)]


def _replicas(meshes: Integers) -> Integers:
    return _column(meshes, "dp") * _column(meshes, "fsdp") * _column(meshes, "ep")


def _batch_splits(meshes: Integers, setting: Setting) -> NDArray[np.bool_]:
    return np.asarray(setting.job.data.global_batch % _replicas(meshes) == 0)


def _kept(
    meshes: Integers, legal: NDArray[np.bool_], rejected: Counter[str], reason: str
) -> Integers:
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
) -> dict[_Kind, NDArray[np.bool_]]:
    """Return for each kind of options which meshes every operator can be split over.

    A mesh that is legal under no options is counted with the first reason found.
    """
    legal: dict[_Kind, NDArray[np.bool_]] = {}
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
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each rule's reason and the meshes that break it."""
    axes = {axis: _column(meshes, axis) for axis in AXES}
    sequence = setting.job.data.sequence_length
    wide = options.changed(tp=2, cp=2, ep=2, processes_per_device=1)
    for rule, broken in illegal_by_rule(split_rules(setting.model, wide, sequence), axes):
        yield rule.reason, broken
    # Causal masks are balanced by giving each rank an early and a late piece of the sample.
    uneven = (axes["cp"] > 1) & (sequence % (2 * axes["cp"]) != 0)
    yield "positions do not divide over twice cp", uneven


def _distinct(meshes: Integers, options: StrategyOptions, limits: Limits) -> Integers:
    """Return the meshes under which the options mean something of their own."""
    tensor, fsdp = _column(meshes, "tp"), _column(meshes, "fsdp")
    copies = _replicas(meshes) * _column(meshes, "cp")  # ranks that hold the same parameters
    keep = np.ones(len(meshes), dtype=bool)
    alone = options.parallelism.context == _NO_CONTEXT and _NO_CONTEXT not in (
        limits.contexts or ()
    )
    keep &= _column(meshes, "cp") == 1 if alone else True
    if options.parallelism.context != _NO_CONTEXT:
        keep &= _column(meshes, "cp") > 1
    if (
        options.parallelism.sequence_parallel
        or options.parallelism.tensor_pairs
        or not options.parallelism.expert_over_tensor
    ):
        keep &= tensor > 1
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


# ---------------------------------------------------------------- options, micro-batches, chunks


def _plain_options(setting: Setting, limits: Limits) -> Iterator[StrategyOptions]:
    """Yield every combination of options; `1f1b` stands for interleaved schedules too."""
    recomputations = _recomputations(setting, limits)
    spread = (False, True) if has_whole_states(setting.model) else (False,)
    spreads = (True, False) if setting.model.own_family and has_experts(setting.model) else (True,)
    usual = _CONTEXTS if setting.software.fused_attention else _CONTEXTS_UNFUSED
    wanted = usual if limits.contexts is None else limits.contexts
    contexts = tuple(dict.fromkeys((_NO_CONTEXT, *wanted)))
    named = [s for s in PIPELINE_SCHEDULES if s in limits.schedules and s not in _WITHOUT_NAME]
    pairs = (False, True) if has_stack(setting.model) else (False,)
    for sharding in limits.shardings if 1 in limits.processes else ():
        for recompute in recomputations:
            for sequence_parallel, in_pairs in itertools.product(spread, pairs):
                for over_tensor in spreads:
                    for schedule, context in itertools.product(("1f1b", *named), contexts):
                        yield StrategyOptions(
                            sharding=sharding,
                            recompute=recompute,
                            sequence_parallel=sequence_parallel,
                            tensor_pairs=in_pairs,
                            expert_over_tensor=over_tensor,
                            schedule=schedule,
                            context=context,
                        )


def _sharing_options(setting: Setting, limits: Limits) -> Iterator[StrategyOptions]:
    """Yield the options of several processes on each device: whole replicas, however many."""
    counts = [count for count in limits.processes if count > 1]
    if "none" not in limits.shardings or setting.job.cluster.is_mixed:
        return
    for count, recompute in itertools.product(counts, _recomputations(setting, limits)):
        yield StrategyOptions(
            processes_per_device=count,
            recompute=recompute,
            device_sharing=TIME_SLICED if limits.in_turn else MPS,
        )


def _recomputations(setting: Setting, limits: Limits) -> Sequence[str]:
    if limits.recomputations is not None:
        return limits.recomputations
    scores = has_attention(setting.model) and not setting.software.fused_attention
    selective = ("selective",) if scores else ()
    return ("none", *selective, "full") if setting.model.layers else ("none",)


def _expanded(
    meshes: Integers, options: StrategyOptions, setting: Setting, limits: Limits
) -> Group:
    """Return the meshes with every micro-batch size and number of virtual stages."""
    batch = options.colocation.process_batch(setting.job.data.global_batch)
    shares = batch // _replicas(meshes)
    row, micro_batch = _with_choices(
        shares,
        {
            int(s): _micro_batch_sizes(int(s), limits, has_tokens=setting.has_tokens)
            for s in np.unique(shares)
        },
    )
    meshes, micro_batches = meshes[row], shares[row] // micro_batch
    stages = _column(meshes, "pp")
    row, virtual = _with_choices(
        stages,
        {int(p): _virtual_stages(int(p), options, setting, limits) for p in np.unique(stages)},
    )
    return Group(
        common=options,
        degrees=Degrees(
            axes={axis: _column(meshes, axis)[row] for axis in AXES},
            micro_batch=micro_batch[row],
            virtual_stages=virtual,
            micro_batches=micro_batches[row],
        ),
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


def _micro_batch_sizes(share: int, limits: Limits, *, has_tokens: bool) -> list[int]:
    if limits.micro_batches is not None:
        return [size for size in limits.micro_batches if share % size == 0]
    every = [d for d in range(1, min(share, _EVERY_DIVISOR_UP_TO) + 1) if share % d == 0]
    size = 2 * _EVERY_DIVISOR_UP_TO
    while size <= (_POWERS_OF_TWO_UP_TO if has_tokens else share) and share % size == 0:
        every.append(size)
        size *= 2
    return every if has_tokens or share == every[-1] else [*every, share]


def _virtual_stages(
    stages: int, options: StrategyOptions, setting: Setting, limits: Limits
) -> list[int]:
    """Return the numbers of chunks per stage that leave no chunk without work."""
    found = []
    wanted: Sequence[int] = range(1, (setting.model.layers + 2) // stages + 1)
    if stages == 1 or options.pipeline.schedule not in {"1f1b", "breadth-first"}:
        wanted = (1,)
    elif limits.virtual_stages is not None:
        wanted = (1, *(v for v in limits.virtual_stages if v > 1))
    for virtual in wanted:
        name = schedule_name(options.changed(virtual_stages=virtual))
        # Without a pipeline the schedule does not matter, so such meshes are always listed.
        if stages > 1 and name not in limits.schedules:
            continue
        if not stage_misfits(setting.model, stages, Schedule(name=name, virtual_stages=virtual)):
            found.append(virtual)
    return found
