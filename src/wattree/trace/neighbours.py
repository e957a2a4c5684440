"""Effect of other jobs on the same fabric on a job's step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourExecution:
    """One step executed concurrently with the neighbors.

    Attributes:
        offsets_s: How long before the job's step each neighbour's began. [s]
        step_time_s: Of the job. [s]
        exposed_communication_s: Of its slowest rank. [s]
        energy_j: Of the job's nodes, with PUE. [J]
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
        place: Their nodes, where these are whole, else their devices: `nodes 1-15:2`.
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
    """Links of one kind that the job shares with neighbours.

    Attributes:
        kind: `scale-up`, `network` or `uplink`.
        shared: Whether the job and a neighbour use one such link at all.
        crowded_s: Time of the job's step in which both are on it and ask for more than it carries,
            on the link where that is longest, in the mean over the plays. Where something else
            holds them back more, it delays no one. [s]
        delay_s: By how much the step would be shorter if every job had such links to itself. [s]
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
        energy_alone_j, energy_mean_j: Of the job's nodes, with PUE. [J]
        executions: One for each phase that was tried.
        links: By kind.
        longer_s: Communication by name → how much longer it takes on the slowest rank, all its
            calls together, in the mean over the plays; longest first. [s]
        jobs: The neighbours.
        phases_given: Whether the job file fixes when every neighbour's step begins.
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
