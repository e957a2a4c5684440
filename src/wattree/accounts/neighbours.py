"""Simulate a job that shares its fabric with others: step alone, step shared, and causes.

Neighbours repeat their steps without a pause. How their steps lie against the job's is given by
the job file, or tried: the neighbour's step begins evenly spread parts of its own step earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattree.accounts.bill import occupied_nodes
from wattree.accounts.breakdown import tasks_of, time_parts
from wattree.accounts.class_sums import class_sums
from wattree.accounts.energy_use import StepEnergy, step_energy
from wattree.accounts.fabric import FabricExecution, Rules, SharedFabric
from wattree.arrays import Flags, Floats, Integers
from wattree.compiler import compile_jobs, link_kind
from wattree.energy import DevicePower
from wattree.errors import JobError, StrategyError
from wattree.graph import TaskKind
from wattree.job import Job, Neighbour, ranges
from wattree.lowering import PlacedJob
from wattree.lowering.model import check_recomputation
from wattree.lowering.setting import Setting
from wattree.strategy import Strategy, StrategyOptions
from wattree.strategy.presets import strategy_of
from wattree.trace import (
    CrowdedLinks,
    NeighbourEffect,
    NeighbourExecution,
    NeighbourJob,
    Result,
    Trace,
)

#: Asked for more than this share of its bandwidth, a link restricts (rule 4 of play).
_FULL = 1 + 1e-9


#: Phases that are tried where the job file gives none.
PHASES = 8
#: Most collectives and transfers named as slowed down.
_NAMED = 5
#: Least share of the largest delay that is named: the rest is noise next to it.
_LEAST_NAMED = 0.01
_COMMUNICATION = (TaskKind.COLLECTIVE, TaskKind.TRANSFER)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFabricStep:
    """A job's step while neighbours share its fabric.

    Attributes:
        trace: The play whose step is nearest to the mean, of all jobs.
        power: Power of the job in it: (time, W) pairs. [s, W]
    """

    effect: NeighbourEffect
    trace: Trace = field(compare=False)
    power: tuple[tuple[float, float], ...]


def shared_fabric_step(
    setting: Setting,
    strategy: Strategy,
    alone: Trace,
    neighbours: Sequence[Setting],
    *,
    fold: bool = True,
    rules: Rules | None = None,
    powers: Sequence[DevicePower],
    core_s: Sequence[float] = (),
) -> SharedFabricStep:
    """Return a job's step on a fabric that it shares with its neighbours.

    Args:
        neighbours: In the order of the job's.
        fold: Simulate one rank for all that do the same.
        rules: Of execution; the default ones if None.
        powers, core_s: As for `step_energy`.

    Raises:
        StrategyError: What overflows of the job is only known of it alone.
        JobError: A neighbour's strategy does not fit it, or its steps are too many to play.
    """
    if strategy.traffic.offload.overflow:
        raise StrategyError(
            {
                "strategy.offload.overflow": "found together with neighbours; expected a job "
                "alone, as "
                "what overflows is known only when it was executed"
            }
        )
    job, rules = setting.job, rules or Rules()
    sources = [job.source, *(other.job.source for other in job.neighbours)]
    labels = _labels(sources)
    compiled = [PlacedJob.of(setting, strategy, label=labels[0])]
    alone_s = [alone.makespan_s]
    for other, label in zip(neighbours, labels[1:], strict=True):
        try:
            tenant = _neighbour(other, label)
            graph, _ = compile_jobs([tenant], job.cluster, fold=fold)
        except StrategyError as error:
            lines = [f"{place}: {reason}" for place, reason in sorted(error.misfits.items())]
            raise JobError(other.job.source, lines) from error
        compiled.append(tenant)
        alone_s.append(rules.execute(graph).makespan_s)
    graph, jobs = compile_jobs(compiled, job.cluster, fold=fold)
    fabric = SharedFabric(graph=graph, jobs=jobs, sources=sources, alone_s=alone_s, rules=rules)
    executions = [fabric.executed(offsets) for offsets in _phases(job.neighbours, alone_s[1:])]

    def energy(trace: Trace) -> StepEnergy:
        ranks = alone.graph.ranks
        nodes = occupied_nodes(job, ranks)
        return step_energy(trace, job.cluster, powers, ranks, nodes=nodes, core_s=core_s)

    return _step_of(setting, alone, fabric, executions, energy)


def with_neighbours(result: Result, effect: NeighbourEffect) -> Result:
    """Return the result of a step with the effect of the job's neighbors."""
    note = "neighbours repeat their steps without a pause"
    if effect.phases_given:
        note += ", and begin at their offsets"
    else:
        executions = len(effect.executions)
        note += f"; {executions} offsets between their steps and this one are equally likely"
    return replace(result, neighbours=effect, assumed=(*result.assumed, note))


def _labels(sources: Sequence[str]) -> list[str]:
    """Name jobs by their files, apart where these are called the same."""
    stems = [source.rsplit("/", 1)[-1].rsplit(".", 1)[0] for source in sources]
    seen: Counter[str] = Counter()
    labels = []
    for stem in stems:
        seen[stem] += 1
        number = f" {seen[stem]}" if stems.count(stem) > 1 else ""
        labels.append(f"{stem}{number}: ")
    return labels


def _neighbour(setting: Setting, label: str) -> PlacedJob:
    """Return a neighbour, ready to be compiled."""
    job = setting.job
    strategy = job.strategy
    assert not isinstance(strategy, str)  # refused where its file was read
    check_recomputation(strategy, setting.model)
    if isinstance(strategy, StrategyOptions):
        strategy = strategy_of(strategy, model=setting.model, global_batch=job.data.global_batch)
    return PlacedJob.of(setting, strategy, label=label)


def _phases(neighbours: Sequence[Neighbour], alone_s: Sequence[float]) -> list[tuple[float, ...]]:
    """Return how long before the job's step each neighbour's begins, play by play. [s]

    Each neighbour is met in evenly spread phases; with odd strides, several go through them in
    different orders.
    """
    executions = 1 if all(other.offset_s is not None for other in neighbours) else PHASES
    return [
        tuple(
            step_s * (number * (2 * index + 1) % PHASES) / PHASES
            if other.offset_s is None
            else other.offset_s
            for index, (other, step_s) in enumerate(zip(neighbours, alone_s, strict=True))
        )
        for number in range(executions)
    ]


def _step_of(
    setting: Setting,
    alone: Trace,
    fabric: SharedFabric,
    executions: Sequence[FabricExecution],
    energy: Callable[[Trace], StepEnergy],
) -> SharedFabricStep:
    """Return the figures of all executions compared with the step alone."""
    job = setting.job
    energies = [energy(executed.own) for executed in executions]
    results = tuple(
        _execute(executed, used) for executed, used in zip(executions, energies, strict=True)
    )
    steps_s = np.array([result.step_time_s for result in results])
    mean_s = float(steps_s.mean())
    nearest = int(np.argmin(np.abs(steps_s - mean_s)))
    effect = NeighbourEffect(
        alone_s=alone.makespan_s,
        mean_s=mean_s,
        least_s=float(steps_s.min()),
        most_s=float(steps_s.max()),
        exposed_alone_s=_exposed_s(alone),
        exposed_mean_s=float(np.mean([r.exposed_communication_s for r in results])),
        energy_alone_j=energy(alone).use.total,
        energy_mean_j=float(np.mean([r.energy_j for r in results])),
        executions=results,
        links=_links(fabric, executions),
        longer_s=_longer_s(alone, executions),
        jobs=tuple(
            _job(
                other.job,
                step_s,
                [s for executed in executions for s in executed.whole_steps_s[index]],
            )
            for index, (other, step_s) in enumerate(
                zip(job.neighbours, fabric.alone_s[1:], strict=True)
            )
        ),
        phases_given=all(other.offset_s is not None for other in job.neighbours),
    )
    curve = energies[nearest].curve
    return SharedFabricStep(
        effect=effect,
        trace=executions[nearest].trace,
        power=tuple((at + executions[nearest].begin_s, watts) for at, watts in curve),
    )


def _execute(executed: FabricExecution, energy: StepEnergy) -> NeighbourExecution:
    return NeighbourExecution(
        offsets_s=executed.offsets_s,
        step_time_s=executed.own.makespan_s,
        exposed_communication_s=_exposed_s(executed.own),
        energy_j=energy.use.total,
    )


def _exposed_s(trace: Trace) -> float:
    return time_parts(trace, class_sums(trace).slowest).exposed_communication


def _job(job: Job, alone_s: float, steps_s: Sequence[float]) -> NeighbourJob:
    devices = job.devices or ()
    return NeighbourJob(
        job=job.source,
        ranks=len(devices),
        place=_place(devices, job.cluster.node.devices),
        alone_s=alone_s,
        concurrent_s=float(np.mean(steps_s)) if steps_s else None,
    )


def _place(devices: Sequence[int], per_node: int) -> str:
    """Return devices in words, by nodes where these are whole."""
    nodes = devices[::per_node]
    whole = [first + device for first in nodes for device in range(per_node)]
    if whole == list(devices) and not any(first % per_node for first in nodes):
        return f"nodes {ranges([first // per_node for first in nodes])}"
    return f"devices {ranges(devices)}"


def _links(fabric: SharedFabric, executions: Sequence[FabricExecution]) -> tuple[CrowdedLinks, ...]:
    """Return the contribution of each kind of link to the delay."""
    kinds = np.array([link_kind(name) for name in fabric.graph.link_names])
    shared = shared_links(executions[0].trace, executions[0].tasks)
    found = [crowded_s(p.trace, p.tasks, p.begin_s, p.end_s) for p in executions]
    mean_s = np.mean(found, axis=0)
    result = []
    for kind in dict.fromkeys(kinds.tolist()):
        of_kind = kinds == kind
        delay_s = 0.0
        if mean_s[of_kind].any():
            there = fabric.apart(of_kind)
            without = [there.executed(p.offsets_s).own.makespan_s for p in executions]
            delay_s = float(np.mean([p.own.makespan_s for p in executions]) - np.mean(without))
        result.append(
            CrowdedLinks(
                kind=kind,
                shared=bool(shared[of_kind].any()),
                crowded_s=float(mean_s[of_kind].max()),
                delay_s=delay_s,
            )
        )
    return tuple(result)


def _longer_s(alone: Trace, executions: Sequence[FabricExecution]) -> dict[str, float]:
    """Return by how much communication of the slowest rank takes longer, by name. [s]"""
    before = _communication_s(alone)
    after: Counter[str] = Counter()
    for executed in executions:
        after.update(_communication_s(executed.own))
    grown = {name: after[name] / len(executions) - before.get(name, 0.0) for name in after}
    longest = sorted(grown.items(), key=lambda item: (-item[1], item[0]))
    # Rounding is no delay, either.
    least_s = max(1e-9 * alone.makespan_s, _LEAST_NAMED * max(grown.values(), default=0.0))
    return {name: time_s for name, time_s in longest[:_NAMED] if time_s > least_s}


def _communication_s(trace: Trace) -> dict[str, float]:
    """Return how long communication of the slowest rank is under way, by name. [s]"""
    graph = trace.graph
    mine = tasks_of(trace, class_sums(trace).slowest)
    mine = mine[np.isin(graph.kind[mine], _COMMUNICATION)]
    lasts = (trace.end_s - trace.start_s)[mine]
    totals = np.bincount(graph.name_ids[mine], weights=lasts, minlength=len(graph.names))
    return {graph.names[index]: float(totals[index]) for index in np.flatnonzero(totals)}


def shared_links(trace: Trace, own: slice) -> Flags:
    """Return which links both the tasks `own` and others use, `(L,)`."""
    graph = trace.graph
    links = len(graph.link_bandwidth_bytes_per_s)
    flows = slice(*graph.flow_offsets[[own.start, own.stop]])
    mine = np.bincount(graph.flow_links[flows], minlength=links)
    every = np.bincount(graph.flow_links, minlength=links)
    return np.asarray((mine > 0) & (every > mine))


def crowded_s(trace: Trace, own: slice, begin_s: float, end_s: float) -> Floats:
    """Return for how long own and other tasks together overfill each link, `(L,)`. [s]

    Counts the time between two moments in which both are at work on a link and ask for more than
    it carries.

    Args:
        begin_s, end_s: The moments. [s]
    """
    graph = trace.graph
    bandwidth = graph.link_bandwidth_bytes_per_s
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    begin = np.clip((trace.start_s + graph.latency_s)[task], begin_s, end_s)
    end = np.clip(trace.end_s[task], begin_s, end_s)
    at_work = (end > begin) & shared_links(trace, own)[graph.flow_links]
    task, begin, end = task[at_work], begin[at_work], end[at_work]
    if not len(task):
        return np.zeros(len(bandwidth))
    link, rate = graph.flow_links[at_work], graph.flow_bytes_per_s[at_work]
    mine = ((task >= own.start) & (task < own.stop)).astype(np.int64)
    moment, on = np.concatenate([begin, end]), np.tile(link, 2)
    order = np.lexsort((moment, on))
    moment, on = moment[order], on[order]

    def level(change: Floats | Integers) -> Floats:
        """Return what holds after each moment; every link begins and ends at 0."""
        return np.asarray(np.cumsum(np.concatenate([change, -change])[order]))

    asked, own_flows, other_flows = level(rate), level(mine), level(1 - mine)
    crowded = (own_flows > 0) & (other_flows > 0) & (asked > bandwidth[on] * _FULL)
    # The last moment of a link is the end of all its flows, so nothing reaches into the next.
    lasts = np.diff(moment, append=moment[-1])
    found = np.bincount(on[crowded], weights=lasts[crowded], minlength=len(bandwidth))
    return found.astype(np.float64)
