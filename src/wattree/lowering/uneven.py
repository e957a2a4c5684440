"""Unequal load of a job's ranks, and combinations that are not supported."""

from __future__ import annotations

from wattree.errors import StrategyError
from wattree.hardware import Cluster
from wattree.lowering.block import ModelProgram
from wattree.lowering.owners import RankLevels, first_rank_levels, owner_levels, rank_levels
from wattree.lowering.placed import PlacedJob
from wattree.strategy import AxisRole, Strategy


def uneven_levels(job: PlacedJob, program: ModelProgram, cluster: Cluster) -> RankLevels | None:
    """Return how unequally the ranks are loaded; None where all do the same.

    Raises:
        StrategyError: More than one thing makes them unequal, or their nodes differ besides.
    """
    strategy = job.strategy
    load, dropless = strategy.expert_load, job.software.moe_dropless
    levels = rank_levels(load, program, strategy.mesh, dropless=dropless)
    owners = owner_levels(program, strategy.mesh)
    if strategy.single_process:
        if misfit := single_process_misfits(strategy, cluster):
            raise StrategyError(misfit)
        everyone = tuple(axis for axis, _ in strategy.mesh.axes)
        owners = first_rank_levels(everyone, strategy.mesh) if strategy.mesh.ranks > 1 else None
    if levels is not None and owners is not None:
        raise StrategyError(
            {
                "strategy.expert_imbalance": "found together with operators that one rank has "
                "whole; "
                "expected one or the other: which ranks are busiest is not added up"
            }
        )
    levels = levels or owners
    if levels is not None and cluster.is_mixed:
        what = "experts" if owners is None else "ranks"
        key = "strategy.expert_imbalance" if owners is None else "strategy.tree"
        raise StrategyError(
            {
                key: f"found {what} of unequal load with cluster.pools of different nodes; "
                "expected nodes of one kind, or equal loads"
            }
        )
    return levels


def single_process_misfits(strategy: Strategy, cluster: Cluster) -> dict[str, str]:
    """Return path → why one process cannot drive the ranks."""
    found = {
        f"strategy.mesh.{axis}": f"found {strategy.mesh.degree(axis)} with single_process, which "
        "knows replicas only; use dp"
        for axis, role in strategy.roles.items()
        if role is not AxisRole.DATA and strategy.mesh.degree(axis) > 1
    }
    devices = cluster.pools[0].node.devices
    if strategy.mesh.ranks > devices:
        found[f"strategy.mesh.{strategy.mesh.axes[0][0]}"] = (
            f"found {strategy.mesh.ranks} with single_process, but a process drives the devices of "
            f"one node, {devices} of {cluster.pools[0].node.name}; use ddp"
        )
    if strategy.schedule.micro_batches > 1:
        found["strategy.schedule.micro_batches"] = (
            f"found {strategy.schedule.micro_batches} with single_process, which sends the whole "
            "batch at once; use 1"
        )
    return found
