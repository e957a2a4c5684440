"""Queue files: YAML → `JobQueue`. All faults of the file and its jobs are reported together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from wattree.errors import JobError, WattreeError
from wattree.hardware import Cluster
from wattree.job.cluster import cluster_of
from wattree.job.cluster_schema import ClusterSpec
from wattree.job.energy import energy_terms, under_terms
from wattree.job.idle import idle_limits
from wattree.job.problems import Problems, seen, shown
from wattree.job.schema import EnergySpec
from wattree.job.section import Section, key
from wattree.job.values import ABOVE_ZERO, DeviceList, Factor, Power, Steps, UnitValue
from wattree.kinds import read_kind, wrong_kind
from wattree.schedule.queue import JobQueue, QueuedJob, QueueObjective
from wattree.units import parse_count

#: More jobs than this take a solver longer than anybody waits.
MOST_JOBS = 1000
#: Ten years: no queue is planned further. [s]
_MOST_S = 10 * 366 * 86_400.0
#: Keys that say how long a job trains.
_LENGTHS = ("steps", "tokens", "samples")
#: Sections of a job file that the queue gives.
_OF_THE_QUEUE = ("cluster", "energy", "place", "neighbours")


def _count(value: object) -> float:
    """Read `10B`, `1.5T` or a number."""
    is_given = isinstance(value, str | int | float) and not isinstance(value, bool)
    found = parse_count(str(value)) if is_given else None
    if found is None:
        raise ValueError(f"{seen(value)}, expected a whole count, such as 10B")
    return found


_Time = Annotated[float, UnitValue("s", "at most ten years", "36 h", _MOST_S)]
_Length = Annotated[float, UnitValue("s", "at most ten years", "30 min", _MOST_S, ABOVE_ZERO)]
_Watts = Annotated[float, UnitValue("w", "a power", "60 kW", least=ABOVE_ZERO)]
_Count = Annotated[
    float,
    BeforeValidator(_count),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}], "examples": ["10B"]}),
]


class QueuedSpec(Section):
    """One job of the queue."""

    name: str = Field(min_length=1, description="a name of its own")
    job: str | dict[str, Any] = Field(
        description="a job file, or what one says, without cluster and energy"
    )
    steps: Steps | None = key("a whole number, training steps until it is done")
    tokens: _Count | None = key("tokens to train on, such as 10B, not steps")
    samples: _Count | None = key("samples to train on, such as 90M, not steps")
    nodes: DeviceList | None = key(
        "numbers of nodes that it may have, such as '1, 2, 4' or '1-8'; any power of two if "
        "not given"
    )
    release: _Time = key("a time from the queue's beginning, such as '2 h'", 0.0)
    deadline: _Time | None = key("a time from the queue's beginning, such as '36 h'")
    priority: Factor = key("a number above 0, the weight of its lateness", 1.0)


class QueueFile(Section):
    """Jobs that wait for a cluster."""

    cluster: ClusterSpec = Field(description="a mapping as in job files; nodes of one kind")
    energy: EnergySpec | None = key(
        "a mapping as in job files; the first hour of a series is the queue's"
    )
    objective: Literal["energy", "cost", "carbon", "completion", "makespan"] = key(
        "energy, cost, carbon, completion or makespan", "energy"
    )
    power_cap: _Watts | None = key(
        "a power such as '60 kW' that all nodes together may draw, with PUE (plan --power-cap "
        "is before PUE)"
    )
    power_limits: list[Power] | None = key(
        "a list of limits of a device, such as ['500 W'], to try in addition to none"
    )
    slot: _Length | None = key("a time, the resolution of starts")
    horizon: _Length | None = key("a time, by which all jobs have ended")
    jobs: list[Any] = Field(description="a list of jobs")


def queue_schema() -> dict[str, Any]:
    """Return the JSON schema of a queue file (draft 2020-12)."""
    schema = QueueFile.model_json_schema()
    jobs = QueuedSpec.model_json_schema()
    schema.setdefault("$defs", {}).update(jobs.pop("$defs", {}))
    schema["$defs"]["QueuedSpec"] = jobs
    schema["properties"]["jobs"]["items"] = {"$ref": "#/$defs/QueuedSpec"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def load_queue(path: Path | str) -> JobQueue:
    """Return the queue that a YAML file describes.

    Raises:
        JobError: The file is missing, too large, no YAML, or describes no possible queue; all
            problems in one.
    """
    path = Path(path)
    return queue_from_mapping(read_kind(path, "a queue"), str(path), folder=path.parent)


def queue_from_mapping(mapping: object, source: str = "queue", *, folder: Path) -> JobQueue:
    """Return the queue of a mapping with the keys of a queue file.

    Args:
        mapping: What the YAML holds.
        folder: Where relative paths in it start.

    Raises:
        JobError: It describes no possible queue; all problems in one.
    """
    problems = Problems(source)
    if other := wrong_kind(mapping, "a queue"):
        problems.add("", other)
        problems.check()
    spec = problems.read(QueueFile, mapping, "")
    if spec is None:
        values = mapping.get("jobs") if isinstance(mapping, Mapping) else None
        _jobs(values if isinstance(values, list) else [], None, folder, problems)
        problems.check()
    assert spec is not None
    assert isinstance(mapping, Mapping)
    cluster = cluster_of(spec.cluster, folder=folder, problems=problems)
    energy = dict(mapping.get("energy") or {})
    terms = energy_terms(energy, folder=folder, problems=problems)
    if isinstance(energy.get("series"), str):
        energy["series"] = str((folder / energy["series"]).resolve())
    if cluster is not None and cluster.is_mixed:
        problems.add("cluster.pools", "found several kinds of nodes, expected one kind")
    if not 1 <= len(spec.jobs) <= MOST_JOBS:
        problems.add("jobs", f"found {len(spec.jobs)}, expected 1 to {MOST_JOBS:,} jobs")
    for number, limit_w in enumerate(spec.power_limits or ()):
        if cluster is not None:
            with problems.at(f"power_limits[{number}]"):
                cluster.limited(limit_w)
    jobs = _jobs(spec.jobs, cluster, folder, problems)
    if cluster is None or cluster.is_mixed:
        problems.check()
    assert cluster is not None
    queue = JobQueue(
        source=source,
        cluster=under_terms(cluster, terms),
        energy=energy,
        terms=terms,
        jobs=tuple(jobs),
        objective=QueueObjective(spec.objective),
        power_cap_w=spec.power_cap,
        limits_w=(cluster.power_limit_w, *(spec.power_limits or ())),
        slot_s=spec.slot,
        horizon_s=spec.horizon,
        warnings=(
            *problems.warnings,
            *idle_limits(cluster, spec.power_limits or (), name="power_limits"),
        ),
    )
    for job in jobs:
        _refuse_mistakes(queue, job, problems)
    problems.check()
    return queue


def _refuse_mistakes(queue: JobQueue, job: QueuedJob, problems: Problems) -> None:
    """Report the faults that a job has on every number of nodes: nodes are not the cause."""
    found: WattreeError | None = None
    there = range(1, queue.cluster.nodes + 1)
    for nodes in [count for count in job.nodes if count in there] if job.mapping else ():
        try:
            queue.job(job, nodes)
        except WattreeError as error:
            found = error
        else:
            return
    if found is None:  # its file, or its numbers of nodes, are at fault
        return
    lines = found.problems if isinstance(found, JobError) else (str(found),)
    for line in lines:
        problems.add(job.source.removeprefix(f"{problems.source}: "), line)


def _jobs(
    values: Sequence[object], cluster: Cluster | None, folder: Path, problems: Problems
) -> list[QueuedJob]:
    read = (_job(v, f"jobs[{n}]", cluster, folder, problems) for n, v in enumerate(values))
    jobs = [job for job in read if job is not None]
    _refuse_same_names(jobs, problems)
    return jobs


def _job(
    value: object, place: str, cluster: Cluster | None, folder: Path, problems: Problems
) -> QueuedJob | None:
    spec = problems.read(QueuedSpec, value, place)
    if spec is None:
        return None
    given = [name for name in _LENGTHS if getattr(spec, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        problems.add(place, f"found {found}, expected one of {', '.join(_LENGTHS)}")
    if spec.deadline is not None and spec.deadline <= spec.release:
        problems.add(f"{place}.deadline", "is not after release; set it later")
    source, mapping, own = f"{problems.source}: {place}.job", spec.job, folder
    if isinstance(mapping, str):
        path = folder / mapping
        source, own, mapping = str(path), path.parent, {}
        with problems.at(f"{place}.job"):
            mapping = _read(path)
    nodes = _nodes(spec, place, cluster, problems)
    return QueuedJob(
        name=spec.name,
        mapping={key: value for key, value in mapping.items() if key not in _OF_THE_QUEUE},
        source=source,
        folder=own,
        steps=spec.steps or 0,
        tokens=spec.tokens,
        samples=spec.samples,
        nodes=nodes,
        release_s=spec.release,
        deadline_s=spec.deadline,
        priority=spec.priority,
    )


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping of a job file.

    Raises:
        JobError: It cannot be read, or is another kind of file.
    """
    mapping: object = read_kind(path, "a job")
    if not isinstance(mapping, dict):
        raise JobError(str(path), [f"{seen(mapping)}, expected a job"])
    if other := wrong_kind(mapping, "a job"):
        raise JobError(str(path), [other])
    return mapping


def _nodes(
    spec: QueuedSpec, place: str, cluster: Cluster | None, problems: Problems
) -> tuple[int, ...]:
    """Return the allowed numbers of nodes of a job, ascending."""
    most = 1 if cluster is None else cluster.nodes
    if spec.nodes is None:
        return tuple(2**power for power in range(most.bit_length()))
    found = sorted(set(spec.nodes))
    if cluster is not None and not 1 <= found[0] <= found[-1] <= most:
        problems.add(
            f"{place}.nodes",
            f"found {', '.join(map(str, found[:8]))}, expected numbers from 1 to {most}, the nodes "
            "of the cluster",
        )
    return tuple(found)


def _refuse_same_names(jobs: list[QueuedJob], problems: Problems) -> None:
    names = [job.name for job in jobs]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            problems.add(
                "jobs",
                f"found the name {shown(name)} {names.count(name)} times; each job needs its own",
            )
