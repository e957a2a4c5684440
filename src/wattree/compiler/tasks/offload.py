"""Offloaded tensors: their layers, their bytes, and whether the tier has enough capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.compiler.tasks.chunk import BlockParts
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.lowering.costs import BlockCosts
from wattree.lowering.movement import Movement
from wattree.lowering.program import BlockProgram, SavedTensor
from wattree.lowering.tiers import capacity_misfits
from wattree.lowering.topology import MeshTopology
from wattree.strategy import SAVED_OUTPUTS
from wattree.strategy.presets.recompute import output_shares
from wattree.strategy.schedules import Order, live_by_chunk

#: What a block reads, which none of its operators makes.
_INPUT = "input"


def saved_bytes(
    costs: BlockCosts, column: int = 0, *, shares: Mapping[str, float] | None = None
) -> float:
    """Return the bytes that a block saves from forward to backward for one micro-batch. [B]

    Args:
        column: Which of those that it has costs for.
        shares: Path of an operator, or `input` → the share of what it makes; None: everything.
    """
    if not costs.program.backward:
        return 0.0
    kept = [
        min(
            1.0 - tensor.share if tensor.recomputed else 1.0,
            1.0 if shares is None else shares.get(_maker(tensor, costs.program), 0.0),
        )
        for tensor in costs.program.saved
    ]
    return float(np.dot(kept, costs.saved_bytes[:, column])) if kept else 0.0


def offloaded_shares(
    tensors: Sequence[str], model: ModelGraph, costs: Sequence[BlockCosts]
) -> Mapping[str, float] | None:
    """Return the share of what each operator makes that is offloaded; None: everything.

    Args:
        tensors: `input` or names of `SAVED_OUTPUTS`; empty: all that blocks save.

    Raises:
        StrategyError: No block saves one of them.
    """
    shares: dict[str, float] = {}
    for name in tensors:
        makers = SAVED_OUTPUTS.get(name, (_INPUT,))
        if not any(saved_bytes(each, shares=dict.fromkeys(makers, 1.0)) for each in costs):
            words = f"found '{name}', which no layer of {model.name} keeps for backward"
            hint = f"leave it out, or keep it (recompute: saves_{name})"
            raise StrategyError({"strategy.offload.activations.tensors": f"{words}; {hint}"})
        for path in makers:
            part = 1.0 if name == _INPUT else output_shares(path, model).get(name, 0.0)
            shares[path] = shares.get(path, 0.0) + part
    return shares or None


def _maker(tensor: SavedTensor, program: BlockProgram) -> str:
    """Return the path of the operator that makes a tensor."""
    return program.forward[tensor.producer].path if tensor.producer >= 0 else _INPUT


def stored_layers(model: ModelGraph, chunks: Sequence[Sequence[int]], count: int) -> frozenset[int]:
    """Return the block instances of a stage with offloaded activations: its first layers.

    Args:
        chunks: Instances of each chunk of the stage.
    """
    layers = sorted(i for chunk in chunks for i in chunk if model.instances[i].is_layer)
    return frozenset(layers[:count])


def waiting_bytes(
    moves: Movement, chunks: Sequence[Sequence[BlockParts]], order: Order
) -> Mapping[str, float]:
    """Return the peak of one rank of a stage in each tier: tier → bytes. [B]"""
    held = dict.fromkeys((*moves.offload.tiers, *moves.tier2_offload.tiers), 0.0)
    storages = [block.storage for chunk in chunks for block in chunk]
    if (tier := moves.offload.optimizer) is not None:  # and with it the gradients it is sent
        held[tier] += float(sum(s.updated_elements[0] for s in storages)) * moves.gradient_bytes
    for offload in (moves.offload, moves.tier2_offload):
        if offload.optimizer is not None:
            held[offload.optimizer] += float(sum(s.optimizer[0] for s in storages))
        if offload.parameters is not None:
            held[offload.parameters] += float(sum(s.parameters[0] for s in storages))
        if offload.tables is not None:
            held[offload.tables] += float(sum(s.tier2[0] for s in storages if s.tier2 is not None))
        if offload.activations is not None:
            kept = "tier2_bytes" if offload is moves.tier2_offload else "stored_bytes"
            live = live_by_chunk(order, len(chunks))
            for chunk, count in zip(chunks, live, strict=True):
                held[offload.activations] += count * sum(getattr(block, kept) for block in chunk)
    return held


def check_capacity(
    topology: MeshTopology,
    by_level: Sequence[Mapping[int, Mapping[str, float]]],
    levels: Integers | None,
) -> None:
    """Raise a StrategyError if a tier cannot hold the data that all ranks send there.

    Args:
        by_level: Tier → bytes of a rank, by level and stage. [B]
        levels: Level of each rank; None: all are of the first.
    """
    held: dict[str, Floats] = {}
    for level, by_stage in enumerate(by_level):
        for stage, sizes in by_stage.items():
            ranks = topology.stage_ranks(stage)
            if levels is not None:
                ranks = ranks[levels[ranks] == level]
            for tier, size in sizes.items():
                held.setdefault(tier, np.zeros(topology.mesh.ranks))[ranks] = size
    if not held:
        return
    devices = topology.device_of(np.arange(topology.mesh.ranks))
    if found := capacity_misfits(topology.cluster.node, held, devices):
        raise StrategyError(found)
