"""Engines of Accelerate and the Trainer: which one runs a strategy, and its traits.

Replicas are DDP; parameters in shards are FSDP2; ZeRO-1 and 2, ZeRO-3 with buckets of gradients (of
which FSDP2 has none) and Ulysses are DeepSpeed. Facts are those of Accelerate 1.15.0
(`accelerate/parallelism_config.py`, `accelerate/state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.cost.families import ENGINES
from wattree.strategy import ULYSSES, StrategyOptions

FSDP, DEEPSPEED, DDP = "FSDP", "DEEPSPEED", "MULTI_GPU"


def engine_of(options: StrategyOptions) -> str:
    """Return the engine for a strategy: FSDP2, DeepSpeed or DDP."""
    sharding, offload = options.memory.sharding, options.traffic.offload
    if sharding in {"zero1", "zero2"} or (
        options.cp > 1 and options.parallelism.context == ULYSSES
    ):
        return DEEPSPEED
    if sharding == "zero3" and (offload.optimizer is None) != (offload.parameters is None):
        return DEEPSPEED  # FSDP2 offloads both or none
    if sharding == "zero3" and options.traffic.gradient_bucket_bytes is not None:
        return DEEPSPEED  # FSDP2 reduces layer by layer
    if sharding == "none" and options.ranks == 1 and offload.optimizer and not offload.parameters:
        return DEEPSPEED  # ZeRO-2 of one rank, whose optimizer is on its host
    return FSDP if sharding in {"zero3", "hybrid"} else DDP


def engine_traits(software: str, strategy: object) -> Mapping[str, Any]:
    """Return what a software family does otherwise where its engine runs a strategy.

    Empty for families with one engine, and for trees, whose engine is not known.
    """
    engines = ENGINES.get(software)
    if engines is None or not isinstance(strategy, StrategyOptions):
        return {}
    return engines.get(engine_of(strategy), {})
