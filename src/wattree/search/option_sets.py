"""Options that strategies of a space share, apart from degrees: every combination to try."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from wattree.lowering.idle import has_experts
from wattree.lowering.split_rules import has_attention
from wattree.predict import Setting
from wattree.search.limits import Limits
from wattree.strategy import (
    MPS,
    OPERATOR_RECOMPUTATIONS,
    TIME_SLICED,
    ULYSSES,
    StrategyOptions,
)
from wattree.strategy.parts import has_stack, has_whole_states
from wattree.strategy.schedules import PIPELINE_SCHEDULES

#: Meshes without context parallelism are listed with this, which is what is not chosen.
NO_CONTEXT = StrategyOptions().parallelism.context
#: Ways of context parallelism that software has; `overlapped` is the limit of none. Attention in
#: blocks needs a fused kernel.
_CONTEXTS = ("ring", "gather", ULYSSES)
_CONTEXTS_UNFUSED = ("gather", ULYSSES)
#: They differ only in virtual stages, so they share options.
_WITHOUT_NAME = ("1f1b", "interleaved")


def limits_of(setting: Setting, limits: Limits) -> Limits:
    """Return limits without what has no meaning, or no meaning of its own, for a job's workload.

    Without backward passes micro-batches pass in the order of GPipe under 1F1B too.
    """
    if setting.model.trainable_parameters:
        return limits
    useless = {"gpipe"} if "1f1b" in limits.schedules else set()
    limits = replace(
        limits,
        shardings=tuple(each for each in limits.shardings if each not in {"zero1", "zero2"}),
        recomputations=("none",),
        schedules=tuple(
            each
            for each in limits.schedules
            if each not in useless and not PIPELINE_SCHEDULES[each].splits_backward
        ),
    )
    if setting.decode is None:
        return limits
    # A generated token is one position; stages have one chunk, and devices one process. Parameters
    # that are gathered for each token take longer than any other way to hold as many.
    return replace(
        limits,
        axes={**limits.axes, "cp": (1,)},
        shardings=("none",) if "none" in limits.shardings else limits.shardings,
        contexts=(),
        virtual_stages=(),
        positions=False,
    )


def plain_options(setting: Setting, limits: Limits) -> Iterator[StrategyOptions]:
    """Yield every combination of options; `1f1b` represents interleaved schedules too."""
    again = recomputations(setting, limits)
    spread = (False, True) if limits.positions and has_whole_states(setting.model) else (False,)
    spreads = (True, False) if setting.model.own_family and has_experts(setting.model) else (True,)
    usual = _CONTEXTS if setting.software.fused_attention else _CONTEXTS_UNFUSED
    wanted = usual if limits.contexts is None else limits.contexts
    contexts = tuple(dict.fromkeys((NO_CONTEXT, *wanted)))
    named = [s for s in PIPELINE_SCHEDULES if s in limits.schedules and s not in _WITHOUT_NAME]
    pairs = (False, True) if has_stack(setting.model) else (False,)
    for sharding in limits.shardings if 1 in limits.processes else ():
        for recompute in again:
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


def sharing_options(setting: Setting, limits: Limits) -> Iterator[StrategyOptions]:
    """Yield the options of several processes on each device: whole replicas, however many."""
    counts = [count for count in limits.processes if count > 1]
    if "none" not in limits.shardings or setting.job.cluster.is_mixed:
        return
    for count, recompute in itertools.product(counts, recomputations(setting, limits)):
        yield StrategyOptions(
            processes_per_device=count,
            recompute=recompute,
            device_sharing=TIME_SLICED if limits.in_turn else MPS,
        )


def recomputations(setting: Setting, limits: Limits) -> Sequence[str]:
    """Return what to try of recomputation: of attention alone only where its scores are kept."""
    if limits.recomputations is not None:
        return limits.recomputations
    scores = has_attention(setting.model) and not setting.software.fused_attention
    selective: tuple[str, ...] = ("selective",) if scores else ()
    if limits.offer is not None and setting.model.own_family:
        offered = limits.offer.choices.get("recompute", ())
        selective += tuple(way for way in OPERATOR_RECOMPUTATIONS if way in offered)
    return ("none", *selective, "full") if setting.model.layers else ("none",)
