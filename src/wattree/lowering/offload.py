"""Check offload against tables, schedules, nodes and neighboring jobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.cost import Software
from wattree.distinct import distinct
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.hardware import Node
from wattree.job.optimizers import MATRIX_OPTIMIZERS
from wattree.lowering.block import ModelProgram
from wattree.lowering.memory_tier_access import split_offload
from wattree.lowering.topology import MeshTopology
from wattree.strategy import Strategy, Traffic


def check_shared_tiers(topologies: Sequence[MeshTopology], used: Sequence[str]) -> None:
    """Reject jobs that would share memory behind the devices: its capacity and host time.

    Args:
        used: Tiers that any of them uses.

    Raises:
        StrategyError: Jobs share a host, or a pool of CXL memory.
    """
    if not used or len(topologies) < 2:
        return
    node = topologies[0].cluster.node
    hosts = [distinct(t.device_of(np.arange(t.mesh.ranks)) // node.devices) for t in topologies]
    every = np.concatenate(hosts)
    pooled = "cxl" in used and node.cxl is not None and node.cxl.pooled
    if pooled or len(distinct(every)) < len(every):
        where = "one pool of CXL memory" if pooled else "a host"
        raise StrategyError(
            {
                "strategy.offload": f"found with neighbours that share {where}; expected jobs on "
                "nodes of their own, as what they keep and update there is not added up"
            }
        )


def check_tier2_tables(program: ModelProgram, software: Software, traffic: Traffic) -> None:
    """Reject offloaded tables where more than the looked-up rows would move.

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


def offload_misfits(
    strategy: Strategy, model: ModelGraph, node: Node, *, optimizer: str
) -> dict[str, str]:
    """Return path → why node or schedule do not support the data movement."""
    found: dict[str, str] = {}
    traffic, offload = strategy.traffic, strategy.traffic.offload
    if "cxl" in offload.tiers and node.cxl is None:
        found["strategy.offload"] = (
            f"found 'cxl', but a {node.name} has no memory over CXL; describe one under `cxl` in "
            "the node's file, or use 'host'"
        )
    elif offload.overflow is not None and not (node.cxl and node.cxl.is_accessed_in_place):
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
    if offload.tensors and split_offload(offload, node)[1].activations is not None:
        found["strategy.offload.activations.tensors"] = (
            f"found {list(offload.tensors)}, but devices of {node.name} read and write all that "
            "they keep in expanded memory; leave it out"
        )
    if offload.layers > model.layers:
        found["strategy.offload.activations.layers"] = (
            f"found {offload.layers}, but {model.name} has {model.layers} layers"
        )
    copies = strategy.schedule.placed(strategy.mesh.stages).copies
    copied, _ = split_offload(offload, node)
    if copied.optimizer is not None and optimizer in MATRIX_OPTIMIZERS:
        found["strategy.offload.optimizer"] = (
            f"products of matrices of {optimizer} are predicted on devices alone; leave it out, or "
            "use another optimizer"
        )
    if copies > 1 and (traffic.overlap_optimizer or copied.optimizer is not None):
        key = "overlap_optimizer" if traffic.overlap_optimizer else "offload.optimizer"
        found[f"strategy.{key}"] = (
            f"the stages of '{strategy.schedule.name}' exchange gradients at the end of the step, "
            "before any update; use a schedule with one direction"
        )
    return found
