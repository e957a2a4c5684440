"""Elasticity of the step time by class of constants.

The elasticity of the step time by a constant is the share of the step that the constant sets: time
of the slowest rank by heading (`breakdown`), its computing by class of operator as the block costs
have it. Pipeline bubbles follow the work that they wait for, so they have no share of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wattree.accounts.breakdown import executed_s, tasks_of
from wattree.accounts.constant_classes import (
    ATTENTION,
    CONVOLUTION,
    EXPERTS,
    HOST,
    HOST_UPDATES,
    LINKS,
    LOADING,
    MEMORY,
    NETWORK,
    OVERHEAD,
    PRODUCTS,
    ROUTING,
    STRAGGLING,
)
from wattree.cost.rates import Rates
from wattree.graph import OperatorClass, StageLabel, TaskKind
from wattree.lowering.costs import BlockCosts, by_read_width
from wattree.lowering.host_stretch import HOST_SMOOTHNESS, blocked_s_of, routing_share
from wattree.lowering.operator_classes import class_of_instruction
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import ComputeInstruction
from wattree.trace import TimeParts

if TYPE_CHECKING:
    from wattree.accounts.executed import ExecutedStep
    from wattree.compiler.compile import Compilation

_OF_OPERATORS = {
    OperatorClass.MATRIX_PRODUCTS: PRODUCTS,
    OperatorClass.ATTENTION: ATTENTION,
    OperatorClass.CONVOLUTION: CONVOLUTION,
}


def time_shares(step: ExecutedStep, parts: TimeParts, slowest: int) -> dict[str, float]:
    """Return class of constants → share of the step time that it sets; they add up to 1.

    Args:
        parts: Where the step goes on the slowest rank class.
    """
    computing = parts.compute + parts.recomputation
    found: dict[str, float] = defaultdict(float)
    for name, share in computing_shares(step).items():
        found[name] += computing * share
    found[MEMORY] += parts.optimizer
    for name, share in _communication(step, slowest).items():
        found[name] += parts.exposed_communication * share
    found[LOADING] += parts.exposed_materials
    updating = min(_host_updates_s(step, slowest), parts.other)
    found[HOST_UPDATES] += updating
    found[OVERHEAD] += parts.other - updating
    _straggle(step, found)
    total = max(sum(found.values()), 1e-30)
    return {name: seconds / total for name, seconds in found.items() if seconds > 0}


def _host_updates_s(step: ExecutedStep, slowest: int) -> float:
    """Return how long the host updates parameters of the slowest rank class. [s]"""
    graph, mine = step.trace.graph, tasks_of(step.trace, slowest)
    if graph.operator_class is None:
        return 0.0
    updates = graph.operator_class[mine] == OperatorClass.OPTIMIZER
    return float(executed_s(step.trace, mine[updates & (graph.kind[mine] == TaskKind.HOST)]).sum())


def _straggle(step: ExecutedStep, found: dict[str, float]) -> None:
    """Move the wait for the slowest of many nodes out of computing, in place."""
    doublings = np.log2(max(sum(step.nodes), 1.0))
    added = max(rates.straggling for rates in step.setting.pool_rates) * doublings
    share = added / (1.0 + added)
    for name in (PRODUCTS, ATTENTION, CONVOLUTION, MEMORY):
        if name in found:
            found[STRAGGLING] += share * found[name]
            found[name] *= 1.0 - share


def computing_shares(step: ExecutedStep, *, as_seen: bool = False) -> Mapping[str, float]:
    """Return class of constants → share of the computing of all blocks.

    Args:
        as_seen: The host has what the device waits for it, as a trace shows; otherwise it has its
            share of how the time changes.
    """
    seconds: dict[str, float] = defaultdict(float)
    for part in step.compilation.parts:
        for number, count in Counter(part.instances).items():
            for name, own in _block_seconds(part.costs[number], step, as_seen=as_seen).items():
                seconds[name] += count * own
    total = sum(seconds.values())
    return {name: own / total for name, own in seconds.items()} if total > 0 else {MEMORY: 1.0}


def waiting_share(compilation: Compilation) -> float:
    """Return the share of computing in which the device waits for its host's launches."""
    waits_s = works_s = 0.0
    for part in compilation.parts:
        for number, count in Counter(part.instances).items():
            costs = part.costs[number]
            for phase in (costs.forward, costs.recomputation, costs.backward):
                computes = [isinstance(each, ComputeInstruction) for each in phase.instructions]
                works_s += count * float(phase.work_s[computes, 0].sum())
                waits_s += count * float(phase.waits_s[computes, 0].sum())
    return waits_s / works_s if works_s > 0 else 0.0


def _block_seconds(costs: BlockCosts, step: ExecutedStep, *, as_seen: bool) -> Mapping[str, float]:
    """Return class of constants → time of one micro-batch through a block. [s]

    Where the host stretches a block to `(device**4 + host**4)**(1/4)`, the host has
    `(host / block)**4` of how it changes; the device works for `device / block` of it.
    """
    setting = step.setting
    rates, _ = by_read_width(costs.program, setting.pool_rates[0], setting.software)
    seconds: dict[str, float] = defaultdict(float)
    for phases in ((costs.forward,), (costs.recomputation, costs.backward)):
        own, host, waits = _phase_seconds(phases, rates)
        total = sum(own.values())
        share = min(host / total, 1.0) ** HOST_SMOOTHNESS if total > 0 else 0.0
        if as_seen:
            share = 1.0 - (1.0 - share) ** (1.0 / HOST_SMOOTHNESS)
        for name, each in own.items():
            seconds[name] += (1.0 - share) * each
        routing = share * total * waits / host if host > 0 else 0.0
        seconds[ROUTING] += routing
        seconds[HOST] += share * total - routing
    return seconds


def _phase_seconds(
    phases: tuple[PhaseCosts, ...], rates: Rates
) -> tuple[Mapping[str, float], float, float]:
    """Return class → time on the device, the time of the host, and what it waits of that. [s]"""
    seconds: dict[str, float] = defaultdict(float)
    host = waits = 0.0
    for phase in phases:
        for index, each in enumerate(phase.instructions):
            if not isinstance(each, ComputeInstruction):
                continue
            own = float(phase.work_s[index, 0])
            blocked = min(blocked_s_of(each, rates), own)
            seconds[_OF_OPERATORS.get(class_of_instruction(each), MEMORY)] += own - blocked
            seconds[HOST] += blocked
            launches = float(phase.host_s[index, 0])
            host += launches
            waits += launches * routing_share(each, rates)
    return seconds, host, waits


def _communication(step: ExecutedStep, slowest: int) -> Mapping[str, float]:
    """Return class of constants → share of the communication of the slowest rank class."""
    trace = step.trace
    graph = trace.graph
    mine = tasks_of(trace, slowest)
    moves = np.isin(graph.kind[mine], (TaskKind.COLLECTIVE, TaskKind.TRANSFER))
    mine = mine[moves & (graph.stage[mine] == StageLabel.COMMUNICATING)]
    busy = executed_s(trace, mine)
    leaves = np.zeros(len(mine), dtype=bool)
    if sum(step.nodes) > 1:
        outside = np.array([" scale-up" not in name for name in graph.link_names], dtype=bool)
        crossing = np.concatenate(([0], np.cumsum(outside[graph.flow_links])))
        leaves = crossing[graph.flow_offsets[mine + 1]] > crossing[graph.flow_offsets[mine]]
    exchanges = np.zeros(len(mine), dtype=bool)
    if graph.operator_class is not None:
        exchanges = graph.operator_class[mine] == OperatorClass.EXPERT_EXCHANGE
    total = float(busy.sum())
    if total <= 0:
        return {LINKS: 1.0}
    seconds = {
        EXPERTS: busy[exchanges].sum(),
        NETWORK: busy[leaves & ~exchanges].sum(),
        LINKS: busy[~leaves & ~exchanges].sum(),
    }
    return {name: float(own) / total for name, own in seconds.items()}
