"""Effect of other jobs on the same fabric on a job's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourExecution:
    """One step executed concurrently with the neighbors.

    Attributes:
        offsets_s: Time by which each neighbor's step begins before the job's. [s]
        step_time_s: Step of the job. [s]
        exposed_communication_s: Exposed communication of its slowest rank. [s]
        energy_j: Energy of the job's nodes, with PUE. [J]
    """

    offsets_s: tuple[float, ...]
    step_time_s: float
    exposed_communication_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourJob:
    """One neighboring job.

    Attributes:
        job: Its file.
        ranks: Its ranks.
        place: Their nodes if these are whole, else their devices: `nodes 1-15:2`.
        alone_s: Its step without any other job. [s]
        concurrent_s: Mean of its steps that lie wholly within the job's; None if none does. [s]
    """

    job: str
    ranks: int
    place: str
    alone_s: float
    concurrent_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrowdedLinks:
    """Links of one kind that the job shares with neighbors.

    Attributes:
        kind: `scale-up`, `network` or `uplink`.
        shared: Whether the job and a neighbor use a common link of this kind.
        crowded_s: Time of the job's step in which both use a link and demand more than its
            bandwidth, on the link with the longest such time, mean over the phases. It causes no
            delay if another bottleneck limits both. [s]
        delay_s: Time by which the step would be shorter if every job had such links alone. [s]
    """

    kind: str
    shared: bool
    crowded_s: float
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourEffect:
    """The step of a job with its neighbors, compared with the same step alone.

    Attributes:
        alone_s, mean_s, least_s, most_s: Step alone; with neighbors, over all simulated phases. [s]
        exposed_alone_s, exposed_mean_s: Exposed communication of the slowest rank. [s]
        energy_alone_j, energy_mean_j: Energy of the job's nodes, with PUE. [J]
        executions: One for each simulated phase.
        links: Shared links by kind.
        longer_s: Communication by name → its additional time on the slowest rank, sum of all
            calls, mean over the phases; longest first. [s]
        jobs: The neighbors.
        phases_given: Whether the job file fixes the start of every neighbor's step.
    """

    alone_s: float
    mean_s: float
    least_s: float
    most_s: float
    exposed_alone_s: float
    exposed_mean_s: float
    energy_alone_j: float
    energy_mean_j: float
    executions: tuple[NeighbourExecution, ...]
    links: tuple[CrowdedLinks, ...]
    longer_s: Mapping[str, float]
    jobs: tuple[NeighbourJob, ...]
    phases_given: bool
