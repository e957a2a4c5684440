"""Convert a simulated step to a run of many steps, for code that fits and compares runs.

All results are marked as simulated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.accounts.breakdown import (
    busy_spans,
    membership_class,
    starved_span,
    tasks_by_class,
    time_parts,
)
from wattree.accounts.energy_use import standing_w
from wattree.arrays import Floats, Integers
from wattree.distinct import distinct
from wattree.energy import loading_energy_j
from wattree.graph import StageLabel, StreamKind, TaskKind
from wattree.job import Job
from wattree.predict.simulation import Prediction
from wattree.trace import Result, Trace
from wattree.trace.run import (
    STAGES,
    Activity,
    MeterReading,
    PowerSeries,
    Run,
    RunOrigin,
    StageUse,
    Work,
)

#: Rank classes evaluated: only the first, as the others wait alike.
_MOST_CLASSES = 256
#: Gradients are summed in fp32, as DDP does with and without autocast. [B]
_GRADIENT_BYTES = 4.0
_DOMAIN, _METER = "all/nodes", "simulation"


def run_of(
    job: Job,
    prediction: Prediction,
    *,
    steps: int,
    name: str,
    activity: Activity = Activity.TRAINING,
    interval_s: float | None = None,
) -> Run:
    """Return a run of `steps` equal simulated steps.

    Energy is that of devices, hosts and switches, without what the site adds (PUE): what meters
    at the nodes would read.

    Args:
        job: What was simulated: nodes all alike, each full of ranks.
        activity: `RESIDENT` for a job without a loader.
        interval_s: Period of a power series over the run; none is made if None. [s]
    """
    result, pool = prediction.result, job.cluster.pool
    node, nodes = pool.node, max(1, round(result.ranks / pool.node.devices))
    step_s = result.step_time_s
    pue = job.cluster.site.pue
    energy = {stage: result.energy_j.by_stage[stage] / pue * steps for stage in STAGES}
    busy, exposed = _stage_times(prediction.trace)
    component = "cpu" if node.device.kind == "cpu" else "accelerator"
    whole = {"wall_s": step_s * steps, "energy_j": sum(energy.values())}
    run = _simulated(job, activity, nodes, name=name, **whole)
    return replace(
        run,
        model=result.model,
        iterations=steps,
        work=_work(job, prediction),
        stages={
            stage: StageUse(
                busy_s=busy[stage] * steps,
                exposed_s=exposed[stage] * steps,
                energy_j=energy[stage],
            )
            for stage in STAGES
        },
        power=_series(prediction, steps, interval_s),
        utilization={
            component: busy["computing"] / step_s,
            "memory": _memory_share(prediction.trace, node.device.memory_bandwidth_bytes_per_s),
            "network": min(busy["communicating"] / step_s, 1.0),
            "storage": min(busy["materials"] / step_s, 1.0),
        },
        rated_w=node.device.tdp_w * result.ranks,
        notes=(*run.notes, *result.assumed),
    )


def idle_run_of(job: Job, *, seconds: float, name: str, nodes: int = 1) -> Run:
    """Return a run of idle nodes: the power at rest that the simulation assumes.

    Args:
        seconds: Length. [s]
    """
    # Of as many nodes as the job has, so that it is networked where they are.
    of_all_w = sum(standing_w(job.cluster, [float(job.cluster.pool.nodes)]))
    energy_j = of_all_w / job.cluster.pool.nodes * nodes * seconds
    return _simulated(job, Activity.IDLE, nodes, name=name, wall_s=seconds, energy_j=energy_j)


def loader_run_of(job: Job, prediction: Prediction, *, steps: int, name: str) -> Run:
    """Return a run of only a job's input pipeline, at the rate of its slowest part.

    Args:
        job: What was simulated, with a loader.
    """
    loading = prediction.loading[0]
    result, node = prediction.result, job.cluster.pool.node
    nodes = max(1, round(result.ranks / node.devices))
    work = _work(job, prediction)
    at_once = loading.samples * loading.everywhere * loading.loader.processes
    micro_batches = _samples(job, result) / at_once
    step_s = max(loading.times_s(micro_batches).values())
    above_j = loading_energy_j(
        core_s=np.array([work.core_s]),
        read_bytes=np.array([work.read_bytes]),
        copied_bytes=np.array([work.copied_bytes]),
    )
    rest_w = sum(standing_w(job.cluster, [float(nodes)]))
    energy_j = (rest_w * step_s + node.host.behind * float(above_j[0])) * steps
    loaded = replace(work, flop=None, memory_bytes=None, network_bytes=None, gradient_bytes=None)
    whole = {"wall_s": step_s * steps, "energy_j": energy_j}
    run = _simulated(job, Activity.LOADER, nodes, name=name, **whole)
    return replace(run, model=result.model, iterations=steps, work=loaded)


def _simulated(
    job: Job, activity: Activity, nodes: int, *, name: str, wall_s: float, energy_j: float
) -> Run:
    """Return a run of nodes of a job with what one meter of all of them would read."""
    node = job.cluster.pool.node
    return Run(
        name=name,
        origin=RunOrigin.SIMULATED,
        activity=activity,
        node=node.name,
        nodes=nodes,
        devices_per_node=node.devices,
        wall_s=wall_s,
        meters=(MeterReading(domain=_DOMAIN, meter=_METER, energy_j=energy_j),),
        notes=("simulated by Wattree: no meter read this",),
    )


def _stage_times(trace: Trace) -> tuple[dict[str, float], dict[str, float]]:
    """Return energy stage → time of its work on a rank per step, and the exposed wait. [s]"""
    graph = trace.graph
    ranks = graph.class_ranks[:_MOST_CLASSES].astype(np.float64)
    tasks = tasks_by_class(trace, len(ranks))
    starved = starved_span(trace)
    busy, exposed = np.zeros(3), np.zeros(3)
    for index, (count, mine) in enumerate(zip(ranks, tasks, strict=True)):
        parts = time_parts(trace, index, mine, starved=starved)
        exposed[StageLabel.MATERIALS] += count * parts.exposed_materials
        exposed[StageLabel.COMMUNICATING] += count * parts.exposed_communication
        for label in StageLabel:
            spans = busy_spans(trace, mine[graph.stage[mine] == label])
            busy[label] += count * float((spans[:, 1] - spans[:, 0]).sum())
    busy, exposed = busy / ranks.sum(), exposed / ranks.sum()
    exposed[StageLabel.COMPUTING] = trace.makespan_s - exposed.sum()
    return (
        dict(zip(STAGES, busy.tolist(), strict=True)),
        dict(zip(STAGES, exposed.tolist(), strict=True)),
    )


def _work(job: Job, prediction: Prediction) -> Work:
    """Return the work of all ranks in a step."""
    trace, result = prediction.trace, prediction.result
    graph = trace.graph
    task, owner = membership_class(trace)
    # A task on several streams of a class is one.
    first = distinct(np.stack([task, owner]), axis=1)
    task, owner = first[0], first[1]
    ranks = graph.class_ranks[owner]
    stage, kind = graph.stage[task], graph.kind[task]
    sent = graph.link_traffic_bytes[task] * ranks
    on = [
        np.isin(task, _tasks_on(trace, stream)) for stream in (StreamKind.STORAGE, StreamKind.COPY)
    ]
    from_storage, copied = (each & (stage == StageLabel.MATERIALS) for each in on)
    computes = kind == TaskKind.COMPUTE
    samples = _samples(job, result)
    return Work(
        samples=samples,
        flop=float((graph.flop[task] * ranks)[computes].sum()),
        memory_bytes=float((graph.memory_traffic_bytes[task] * ranks)[computes].sum()),
        read_bytes=float(sent[from_storage].sum()),
        core_s=_core_s(prediction, samples),
        copied_bytes=float(sent[copied].sum()),
        network_bytes=float(sent[stage == StageLabel.COMMUNICATING].sum()),
        gradient_bytes=result.parameters * _GRADIENT_BYTES,
    )


def _tasks_on(trace: Trace, stream: StreamKind) -> Integers:
    graph = trace.graph
    task, _ = membership_class(trace)
    return np.asarray(task[graph.stream_kind[graph.stream_ids] == stream])


def _core_s(prediction: Prediction, samples: float) -> float:
    """Return the core time of loading the samples of a step. [s]"""
    if not prediction.loading:
        return 0.0
    return prediction.loading[0].loader.core_s * samples


def _samples(job: Job, result: Result) -> float:
    """Return the samples of a step, of all processes of each device."""
    if (use := result.colocation) is None:
        return float(job.data.global_batch)
    return use.samples_per_process * use.processes_per_device * result.ranks


def _memory_share(trace: Trace, bytes_per_s: float) -> float:
    """Return the share of the memory bandwidth that a rank uses, on average."""
    graph = trace.graph
    task, owner = membership_class(trace)
    moved = float((graph.memory_traffic_bytes[task] * graph.class_ranks[owner]).sum())
    most = float(graph.class_ranks.sum()) * bytes_per_s * trace.makespan_s
    return min(moved / most, 1.0)


def _series(
    prediction: Prediction, steps: int, interval_s: float | None
) -> tuple[PowerSeries, ...]:
    """Return the step's power repeated, averaged over each interval."""
    if interval_s is None or not prediction.power:
        return ()
    step_s = prediction.result.step_time_s
    starts = np.array([at_s for at_s, _ in prediction.power])
    watts = np.array([each for _, each in prediction.power])
    edges = np.append(starts, step_s)
    energy = np.concatenate([[0.0], np.cumsum(watts * np.diff(edges))])

    def reached(at_s: Floats) -> Floats:
        whole = np.floor(at_s / step_s)
        return np.asarray(whole * energy[-1] + np.interp(at_s - whole * step_s, edges, energy))

    count = int(step_s * steps / interval_s)
    at_s = np.arange(1, count + 1) * interval_s
    average = np.diff(reached(np.concatenate([[0.0], at_s]))) / interval_s
    return (PowerSeries(domain="total", at_s=tuple(at_s.tolist()), watts=tuple(average.tolist())),)
