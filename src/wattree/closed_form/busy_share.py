"""The share of a step in which one process keeps its device busy."""

from __future__ import annotations

from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.places import StagePlace
from wattree.closed_form.strategies import screened
from wattree.lowering.setting import Setting
from wattree.strategy import FIXED_PER_PROCESS, StrategyOptions


def busy_share(setting: Setting, options: StrategyOptions, step_s: float) -> float:
    """Return the share of a step in which a single process keeps its device busy, in [0, 1].

    Args:
        options: Data parallelism with one process on each device, which may share its state.
        step_s: The step. [s]
    """
    # What a device does for one of several processes with as many samples each is what it does
    # for one alone.
    slowdown = StrategyOptions(
        recompute=options.memory.recompute, processes_per_device=2, batch_rule=FIXED_PER_PROCESS
    )
    alone = StrategyOptions(dp=options.replicas, micro_batch=options.pipeline.micro_batch)
    degrees = Degrees.of([alone], setting.job.data.global_batch)
    program = screened(setting, slowdown, degrees).program
    tables = BlockCostTable(setting, slowdown, degrees, program, place=StagePlace.of(setting, 0))
    costs = [table.costs for table in tables.blocks]
    demands = [0.0 if c.shared is None else float(c.shared.demand_s[0]) for c in costs]
    demand_s = sum(demands[number] for number in program.instances)
    return min(demand_s * float(degrees.micro_batches[0]) / step_s, 1.0)
