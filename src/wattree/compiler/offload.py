"""What waits outside of the devices: which layers, how many bytes, and whether there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from wattree.compiler.block import ModelProgram
from wattree.compiler.chunk import BlockParts
from wattree.compiler.evaluate import BlockCosts
from wattree.compiler.movement import Movement
from wattree.compiler.reach import reached_offload
from wattree.compiler.tiers import capacity_misfits
from wattree.compiler.topology import MeshTopology
from wattree.cost import Software
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.hardware import Node
from wattree.strategy import Strategy, Traffic
from wattree.strategy.schedules import Order, alive_by_chunk

__all__ = [
    "check_capacity",
    "check_far_tables",
    "check_shared_tiers",
    "kept_bytes",
    "offload_misfits",
    "stored_layers",
    "waiting_bytes",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def kept_bytes(costs: BlockCosts, column: int = 0) -> float:
    """Return what a block keeps from forward to backward for one micro-batch. [B]

    Args:
        costs: Of the block.
        column: Which of those that it has costs for.
    """
    if not costs.program.backward:
        return 0.0
    kept = [1.0 - tensor.share if tensor.recomputed else 1.0 for tensor in costs.program.saved]
    return float(np.dot(kept, costs.saved_bytes[:, column])) if kept else 0.0


def stored_layers(model: ModelGraph, chunks: Sequence[Sequence[int]], count: int) -> frozenset[int]:
    """Return the block instances of a stage whose activations wait elsewhere: its first layers.

    Args:
        model: What is trained.
        chunks: Instances of each chunk of the stage.
        count: How many layers.
    """
    layers = sorted(i for chunk in chunks for i in chunk if model.instances[i].is_layer)
    return frozenset(layers[:count])


def waiting_bytes(
    moves: Movement, chunks: Sequence[Sequence[BlockParts]], order: Order
) -> Mapping[str, float]:
    """Return what one rank of a stage has in each tier at most: tier → bytes. [B]"""
    held = dict.fromkeys((*moves.offload.tiers, *moves.reached.tiers), 0.0)
    storages = [block.storage for chunk in chunks for block in chunk]
    if (tier := moves.offload.optimizer) is not None:  # and with it the gradients it is sent
        held[tier] += float(sum(s.updated_elements[0] for s in storages)) * moves.gradient_bytes
    for offload in (moves.offload, moves.reached):
        if offload.optimizer is not None:
            held[offload.optimizer] += float(sum(s.optimizer[0] for s in storages))
        if offload.parameters is not None:
            held[offload.parameters] += float(sum(s.parameters[0] for s in storages))
        if offload.tables is not None:
            held[offload.tables] += float(sum(s.far[0] for s in storages if s.far is not None))
        if offload.activations is not None:
            kept = "far_bytes" if offload is moves.reached else "stored_bytes"
            alive = alive_by_chunk(order, len(chunks))
            for chunk, count in zip(chunks, alive, strict=True):
                held[offload.activations] += count * sum(getattr(block, kept) for block in chunk)
    return held


def check_capacity(
    topology: MeshTopology,
    by_level: Sequence[Mapping[int, Mapping[str, float]]],
    levels: Integers | None,
) -> None:
    """Raise a StrategyError if a tier cannot hold what all ranks send there.

    Args:
        topology: Where ranks are.
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


def check_shared_tiers(topologies: Sequence[MeshTopology], used: Sequence[str]) -> None:
    """Refuse jobs that would share memory behind the devices: its room and its host's time.

    Args:
        topologies: Of jobs on one cluster.
        used: Tiers that any of them uses.

    Raises:
        StrategyError: Jobs share a host, or a pool of CXL memory.
    """
    if not used or len(topologies) < 2:
        return
    node = topologies[0].cluster.node
    hosts = [np.unique(t.device_of(np.arange(t.mesh.ranks)) // node.devices) for t in topologies]
    every = np.concatenate(hosts)
    pooled = "cxl" in used and node.cxl is not None and node.cxl.pooled
    if pooled or len(np.unique(every)) < len(every):
        where = "one pool of CXL memory" if pooled else "a host"
        raise StrategyError(
            {
                "strategy.offload": f"found with neighbours that share {where}; expected jobs on "
                "nodes of their own, as what they keep and update there is not added up"
            }
        )


def check_far_tables(program: ModelProgram, software: Software, traffic: Traffic) -> None:
    """Refuse tables behind the device where not just the rows that are looked up would move.

    Raises:
        StrategyError: There are none, gradients are dense, replicas hold the same tables, or what
            was brought in is kept for backward.
    """
    tables = [g for each in program.programs for g in each.parameters if g.touched is not None]
    where = "strategy.offload.tables"
    found = {}
    if not tables:
        found[where] = (
            f"found with {program.model.name}, which has no tables that samples look up in"
        )
    elif not software.sparse_gradients:
        found[where] = (
            f"'{software.name}' makes gradients of whole tables, which would all cross the link; "
            "set traits: {sparse_gradients: true}, or leave it out"
        )
    elif any(group.partial_axes for group in tables):
        found[where] = (
            "found with tables that replicas hold alike; spread them: tables: auto, table-wise, "
            "row-wise or column-wise"
        )
    if not traffic.reshard_after_forward:
        found["strategy.reshard_after_forward"] = (
            "found false with offload.tables, whose rows are dropped after forward; leave it out"
        )
    if found:
        raise StrategyError(found)


def offload_misfits(strategy: Strategy, model: ModelGraph, node: Node) -> dict[str, str]:
    """Return path → what the node or the schedule lacks for what moves beside the computation."""
    found: dict[str, str] = {}
    traffic, offload = strategy.traffic, strategy.traffic.offload
    if "cxl" in offload.tiers and node.cxl is None:
        found["strategy.offload"] = (
            f"found 'cxl', but a {node.name} has no memory over CXL; describe one under `cxl` in "
            "the node's file, or use 'host'"
        )
    elif offload.overflow is not None and not (node.cxl and node.cxl.is_reached):
        found["strategy.offload.overflow"] = (
            f"found '{offload.overflow}', but a {node.name} only copies to and from it; let the "
            "node's file say `access: serial` or `access: concurrent` under `cxl`, or name what "
            "waits there"
        )
    elif "host" in (offload.optimizer, offload.tables) and node.host.memory_bytes_per_s is None:
        item = "optimizer" if offload.optimizer == "host" else "tables"
        found[f"strategy.offload.{item}"] = (
            f"the update on the host takes its memory bandwidth, which {node.name} does not "
            "give; add `memory_bandwidth` under `host` in the node's file"
        )
    if offload.layers > model.layers:
        found["strategy.offload.activations.layers"] = (
            f"found {offload.layers}, but {model.name} has {model.layers} layers"
        )
    copies = strategy.schedule.placed(strategy.mesh.degree("pp")).copies
    copied, _ = reached_offload(offload, node)
    if copies > 1 and (traffic.overlap_optimizer or copied.optimizer is not None):
        key = "overlap_optimizer" if traffic.overlap_optimizer else "offload.optimizer"
        found[f"strategy.{key}"] = (
            f"the stages of '{strategy.schedule.name}' exchange gradients at the end of the step, "
            "before any update; use a schedule with one direction"
        )
    return found
