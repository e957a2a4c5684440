"""A queue: jobs, the cluster that they run on, and the objective of the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from wattree.hardware import Cluster
from wattree.job import Job, job_from_mapping
from wattree.job.energy import EnergyTerms


class QueueObjective(StrEnum):
    """The quantity to minimize after lateness; each is a value of `problem.OBJECTIVES`."""

    ENERGY = "energy"
    COST = "cost"
    CARBON = "carbon"
    COMPLETION = "completion"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """One job of a queue.

    Attributes:
        name: Unique in the queue.
        mapping: Its job file without cluster and energy, which are the queue's.
        source: Where it was read from, for messages.
        folder: Where relative paths in it start.
        steps: Training steps until it is done; 0 where `tokens` or `samples` say it.
        tokens, samples: To train on; None where another says it.
        nodes: Numbers of nodes that it may have, ascending.
        release_s, deadline_s, priority: As in `QueuedTask`.
    """

    name: str
    mapping: Mapping[str, Any]
    source: str
    folder: Path
    steps: int
    tokens: float | None
    nodes: tuple[int, ...]
    release_s: float
    deadline_s: float | None
    priority: float
    samples: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueue:
    """Jobs and the cluster that they share.

    Attributes:
        source: File, for messages.
        cluster: All of it, at the queue's prices.
        energy: Its section `energy`, with paths that hold from anywhere.
        terms: The same, read.
        jobs: In the order of the file.
        objective: What the schedule has least of.
        power_cap_w: Of all nodes together, PUE included; None: any. [W]
        limits_w: Power limits of devices that every job may run under; None is no limit. [W]
        slot_s, horizon_s: Of the timetable; None leaves them to the schedule. [s]
        warnings: Of the file and of its jobs.
    """

    source: str
    cluster: Cluster
    energy: Mapping[str, Any]
    terms: EnergyTerms
    jobs: tuple[QueuedJob, ...]
    objective: QueueObjective
    power_cap_w: float | None
    limits_w: tuple[float | None, ...]
    slot_s: float | None
    horizon_s: float | None
    warnings: tuple[str, ...] = ()

    def job(self, queued: QueuedJob, nodes: int) -> Job:
        """Return a job on the given number of adjacent nodes of the cluster.

        Raises:
            WattreeError: It describes no possible job.
        """
        (pool,) = self.cluster.pools
        part = replace(self.cluster, pools=(replace(pool, nodes=nodes),))
        mapping = {**queued.mapping, **({"energy": self.energy} if self.energy else {})}
        job = job_from_mapping(mapping, queued.source, folder=queued.folder, cluster=part)
        return job.lasting(steps=queued.steps or None, tokens=queued.tokens, samples=queued.samples)
