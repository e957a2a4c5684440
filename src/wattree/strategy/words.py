"""A strategy in a few words, for rankings and sentences."""

from __future__ import annotations

from wattree.strategy.colocation import FIXED_GLOBAL, MPS
from wattree.strategy.mesh import AXES
from wattree.strategy.options import StrategyOptions
from wattree.strategy.phantom import ACTIVATIONS, PAIR
from wattree.strategy.traffic import Offload

__all__ = ["options_in_words"]


def _placed(offload: Offload) -> list[str]:
    """Return what waits in which memory behind the devices."""
    items = ("optimizer", "parameters", "activations", "tables", "overflow")
    by_tier = {
        tier: " + ".join(item for item in items if getattr(offload, item) == tier)
        for tier in offload.tiers
    }
    return [f"{placed} in {tier}" for tier, placed in by_tier.items()]


def options_in_words(options: StrategyOptions) -> str:
    """Return the options as a few words, what is off or 1 left out."""
    degrees = [f"{axis} {getattr(options, axis)}" for axis in AXES if getattr(options, axis) > 1]
    words = [" × ".join(degrees) or "one rank"]
    if options.sharding != "none":
        words.append(options.sharding)
    if options.cp > 1 and options.context != "overlapped":
        words.append(f"{options.context} context")
    if options.cp > 1 and options.context_order != "zigzag":
        words.append(f"{options.context_order} positions")
    if options.sequence_parallel:
        words.append("sequence parallel")
    if not options.expert_over_tensor:
        words.append("split experts")
    if options.pp > 1:
        chunks = f" × {options.virtual_stages}" if options.virtual_stages > 1 else ""
        words.append(options.schedule + chunks)
    if options.stage_layers is not None:
        words.append(f"{'+'.join(map(str, options.stage_layers))} layers")
    if options.phantom:
        told = [options.variant] if options.variant != PAIR else []
        told += ["exchanging activations"] if options.exchange == ACTIVATIONS else []
        told += ["some of other numbers"] if options.layer_ghosts else []
        more = f" ({', '.join(told)})" if told else ""
        words.append(f"phantom layers of {options.ghosts} ghosts{more}")
    words += [
        said
        for said, holds in (
            ("one process", options.single_process),
            ("split fully connected layers", options.op_shard),
            ("layers in pairs", options.tensor_pairs and options.tp > 1),
            (f"{options.tables} tables", options.tables != "data-parallel"),
            ("synchronised batch norm", options.sync_batch_norm),
            (_processes(options), options.processes_per_device > 1),
        )
        if holds
    ]
    words += _placed(options.traffic.offload)
    words.append(f"micro-batch {options.micro_batch}")
    if options.recompute != "none":
        words.append(f"{options.recompute} recomputation")
    return ", ".join(words)


def _processes(options: StrategyOptions) -> str:
    """Return how many processes share a device, and how unless under MPS with a shared batch."""
    found = f"{options.processes_per_device} processes a device"
    if options.device_sharing != MPS:
        found += " in turn"
    return found if options.batch_rule == FIXED_GLOBAL else f"{found}, each with a whole batch"
