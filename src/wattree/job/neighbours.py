"""The `neighbours` section: other jobs on the same fabric, each read from its own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattree.errors import JobError
from wattree.files import read_yaml
from wattree.hardware import Cluster
from wattree.job.cluster import cluster_of
from wattree.job.cluster_schema import ClusterSpec, NeighbourSpec, PlaceSpec
from wattree.job.job import AUTO, Job, Neighbour
from wattree.job.place import JobPlace, place_of
from wattree.job.problems import Problems, ranges, shown

#: Most jobs in addition to the first one; a few jobs dominate a shared fabric.
MOST_NEIGHBOURS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Context in which the file of a neighbour is read.

    Attributes:
        host: File of the job that names it.
        cluster: That job's cluster, which is the truth.
        place: Devices that the naming job gives it; None leaves them to its own file.
        free: Devices that no job before it has, ascending.
    """

    host: str
    cluster: Cluster
    place: JobPlace | None
    free: tuple[int, ...]


def neighbours_of(
    value: object,
    job: Job,
    *,
    folder: Path,
    problems: Problems,
    read: Callable[[Mapping[Any, Any], str, Path, Guest], Job],
) -> tuple[Neighbour, ...]:
    """Return the jobs of a list, each on separate devices; record problems.

    Args:
        value: As read from the file.
        folder: Where relative paths start.
        read: Reader of a neighbour's file: mapping, source, folder, guest → job.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_NEIGHBOURS:
        problems.add(
            "neighbours",
            f"found {shown(value)}, expected a list of 1 to {MOST_NEIGHBOURS} mappings of job and "
            "its devices",
        )
        return ()
    owners = dict.fromkeys(job.devices or (), job.source)
    found: list[Neighbour] = []
    known = {Path(job.source).resolve(), *(_paths(value, folder))}
    for index, item in enumerate(value):
        where = f"neighbours[{index}]"
        spec = problems.read(NeighbourSpec, item, where)
        if spec is None:
            continue
        free = tuple(d for d in range(job.cluster.devices) if d not in owners)
        faults = len(problems.lines)
        place = place_of(spec, job.cluster, where, problems=problems)
        if len(problems.lines) > faults:
            continue
        guest = Guest(host=job.source, cluster=job.cluster, place=place, free=free)
        with problems.at(f"{where}.job"):
            path = folder / spec.job
            mapping = read_yaml(path)
            if path.resolve() == Path(job.source).resolve():  # its place is taken: by itself
                mapping.pop("place", None)
            neighbour = read(mapping, str(path), path.parent, guest)
            others = _unknown_neighbours(mapping, path, known)
            _check_alone(neighbour, owners, where, problems=problems)
            owners |= dict.fromkeys(neighbour.devices or (), neighbour.source)
            problems.warnings += [f"{where}: {path}: {line}" for line in neighbour.warnings]
            if others:
                problems.warn(
                    where,
                    f"{path}: neighbours: {', '.join(others)} not followed; name every job that "
                    "runs alongside this one here",
                )
            found.append(Neighbour(job=neighbour, offset_s=spec.offset))
    return tuple(found)


def _paths(value: list[Any], folder: Path) -> list[Path]:
    """Return the files that a list of neighbours names, even if other parts of it are wrong."""
    named = [item.get("job") for item in value if isinstance(item, Mapping)]
    return [(folder / job).resolve() for job in named if isinstance(job, str) and "\0" not in job]


def _unknown_neighbours(mapping: Mapping[str, Any], path: Path, known: set[Path]) -> list[str]:
    """Return the files that a neighbour calls its neighbours and that are none of the jobs."""
    value = mapping.get("neighbours")
    found = _paths(value, path.parent) if isinstance(value, list) else []
    return [other.name for other in found if other not in known]


def _check_alone(
    neighbour: Job, owners: Mapping[int, str], where: str, *, problems: Problems
) -> None:
    """Refuse devices that another job has."""
    shared = [device for device in neighbour.devices or () if device in owners]
    if shared:
        others = ", ".join(dict.fromkeys(owners[device] for device in shared))
        problems.add(
            where,
            f"found devices {ranges(shared)} for {neighbour.source}, which {others} has; expected "
            "devices that no other job has: say where each job sits with nodes, devices or "
            "first_device (of the first job under place)",
        )


def guest_cluster(
    value: object, guest: Guest, *, folder: Path, problems: Problems
) -> tuple[Cluster, int | None]:
    """Return the cluster that a neighbour runs on, and how many devices its own file gives it.

    The cluster of the job that names it is the truth. Its own may only say of how many of the same
    nodes the job is made, and how its devices are capped.
    """
    if value is None:
        return guest.cluster, None
    spec = problems.read(ClusterSpec, value, "cluster")
    own = None if spec is None else cluster_of(spec, folder=folder, problems=problems)
    if spec is None or own is None:
        return guest.cluster, None
    for key, mine, theirs in (
        ("node", own.node, guest.cluster.node),
        ("fabric", own.fabric if spec.fabric else guest.cluster.fabric, guest.cluster.fabric),
    ):
        if mine != theirs:
            problems.add(
                f"cluster.{key}",
                f"found {mine.name}, expected {theirs.name}, the {key} of {guest.host}, on whose "
                f"cluster it runs; leave {key if key == 'fabric' else 'cluster'} out",
            )
    for key in ("slowdown", "stragglers", "slow_links"):
        if getattr(spec, key) is not None:
            problems.warn(f"cluster.{key}", f"has no effect on a neighbour; set it in {guest.host}")
    if own.power_limit_w is None:
        return guest.cluster, own.devices
    return replace(guest.cluster, power_limit_w=own.power_limit_w), own.devices


def guest_place(
    value: object, guest: Guest, own_devices: int | None, *, problems: Problems
) -> JobPlace:
    """Return the devices of a neighbour: as its host says, as its own file says, or free ones.

    Args:
        value: The section `place` of its own file.
        own_devices: Devices of its own cluster, if it has one.
    """
    place = guest.place
    if place is None and value is not None:
        spec = problems.read(PlaceSpec, value, "place")
        if spec is not None:
            place = place_of(spec, guest.cluster, "place", problems=problems, least=1)
    if place is None:
        if not guest.free:
            problems.add(
                "",
                f"found no device left on the cluster of {guest.host}, expected some; give the "
                "cluster more nodes, or say under place of how many the first job is made",
            )
        place = JobPlace(devices=guest.free, at_most=True)
    if not place.at_most or own_devices is None:
        return place
    if own_devices > len(place.devices):
        problems.add(
            "cluster.nodes",
            f"found {own_devices} devices, expected at most {len(place.devices)}: what is left of "
            f"the cluster of {guest.host}",
        )
    return JobPlace(devices=place.devices[:own_devices])


def refuse_auto(job: Job, host: str) -> None:
    """Refuse a neighbour without a strategy.

    Raises:
        JobError: It leaves its strategy to `plan`.
    """
    if job.strategy == AUTO:
        raise JobError(
            job.source,
            [
                f"strategy: found '{AUTO}', expected a strategy: a neighbour of {host} is executed "
                f"as it is; find one with `wattree plan {job.source}` and write it down"
            ],
        )
