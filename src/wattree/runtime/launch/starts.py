"""Settings of each process of a launcher: its rank, its device, its share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattree.runtime.colocation.children import Start
from wattree.runtime.colocation.environment import JOB, ColocatedProcess
from wattree.runtime.colocation.layout import ProcessLayout, ProcessPlace
from wattree.runtime.launch.environment import LAUNCHERS
from wattree.runtime.launch.options import LaunchOptions
from wattree.runtime.launch.store import AGENT_STORE
from wattree.runtime.patches.names import FOLDER

_MIB = 2**20
#: By these a process of MPI finds its launcher, as the rank that the launcher is: several processes
#: cannot all be it.
_OF_MPI = ("PMIX_", "PMI_", "OMPI_MCA_ess", "HYDI_")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSettings:
    """Settings that all processes of a launcher share.

    Attributes:
        layout: All processes of the job.
        uuids: Of the devices of this node, by local number; empty for processors.
        token: Of the launcher's job on this node.
        mps: Variables that name the daemon, or keep programs from another's.
        has_daemon: Whether processes share devices by a daemon.
        is_direct: Each launcher has one process.
    """

    layout: ProcessLayout
    options: LaunchOptions
    uuids: tuple[str, ...]
    address: str
    port: int
    token: str
    mps: Mapping[str, str]
    has_daemon: bool
    is_direct: bool


def common_environment(environment: Mapping[str, str], settings: LaunchSettings) -> dict[str, str]:
    """Return the environment of all processes of a launcher."""
    common = {
        name: value
        for name, value in environment.items()
        # torchrun's agent keeps a store for as many ranks as it started, which are not ours.
        if name != AGENT_STORE and (settings.is_direct or not name.startswith(_OF_MPI))
    }
    common |= {
        "MASTER_ADDR": settings.address,
        "MASTER_PORT": str(settings.port),
        JOB: settings.token,
    }
    common |= settings.mps
    if len({place.node for place in settings.layout.places}) == 1:
        common.setdefault("GLOO_SOCKET_IFNAME", "lo")  # names of hosts need not resolve
    if settings.options.device == "cpu":
        common["CUDA_VISIBLE_DEVICES"] = ""
    if settings.options.patches and (FOLDER / "sitecustomize.py").is_file():
        paths = [str(FOLDER), environment.get("PYTHONPATH", "")]
        common["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return common


def starts_of(
    places: Sequence[ProcessPlace], environment: Mapping[str, str], settings: LaunchSettings
) -> tuple[Start, ...]:
    """Return how each process is started."""
    here = settings.layout.on_node(places[0].node)
    return tuple(
        Start(
            rank=place.rank,
            variables=_variables(place, here, environment, settings),
            cores=place.cores if settings.options.pins and len(here) > 1 else (),
            log=None
            if settings.options.logs is None
            else settings.options.logs / f"rank{place.rank}",
        )
        for place in places
    )


def _variables(
    place: ProcessPlace,
    here: Sequence[ProcessPlace],
    environment: Mapping[str, str],
    settings: LaunchSettings,
) -> dict[str, str]:
    colocation = ColocatedProcess(
        processes=settings.layout.processes_per_device,
        device=place.device,
        device_rank=place.device_rank,
        local_rank=place.local_rank,
        reduce=settings.options.reduce,
        batch_rule=settings.options.batch_rule,
        loader_workers=place.loader_workers,
    )
    # The device that this process sees is its own alone: the first.
    local_rank = 0 if settings.uuids else place.local_rank
    nodes = len({other.node for other in settings.layout.places})
    variables = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(settings.layout.ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(settings.layout.ranks),
        **_of_other_launchers(environment, place, settings, local_rank, len(here)),
        **colocation.variables(),
    }
    if settings.uuids:
        variables["CUDA_VISIBLE_DEVICES"] = settings.uuids[place.local_device]
        variables |= _limits(settings.options) if settings.has_daemon else {}
    if len(here) > 1 and place.cores and "OMP_NUM_THREADS" not in environment:
        sharers = sum(other.cores == place.cores for other in here)
        variables["OMP_NUM_THREADS"] = str(max(1, len(place.cores) // sharers))
    return variables


def _of_other_launchers(
    environment: Mapping[str, str],
    place: ProcessPlace,
    settings: LaunchSettings,
    local_rank: int,
    local_world: int,
) -> dict[str, str]:
    """Return the variables that the outer launcher set for itself, as they are of this process."""
    found: dict[str, str] = {}
    for launcher in LAUNCHERS[1:]:
        if launcher.rank not in environment or settings.is_direct:
            continue
        found |= {launcher.rank: str(place.rank), launcher.world: str(settings.layout.ranks)}
        found[launcher.local_rank] = str(local_rank)
        found |= dict.fromkeys(launcher.local_world, str(local_world))
    if "SLURM_PROCID" in environment:
        found["SLURM_NTASKS"] = str(settings.layout.ranks)
    return {name: value for name, value in found.items() if not name.startswith(_OF_MPI)}


def _limits(options: LaunchOptions) -> dict[str, str]:
    """Return the limits of MPS for a client; its only visible device is number 0."""
    found = {}
    if options.thread_percentage is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{options.thread_percentage:g}"
    if options.memory_limit_bytes is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={int(options.memory_limit_bytes // _MIB)}M"
    return found
