"""Reads a launcher's environment: rank, world size and rendezvous address.

References:
    [1] PyTorch, "torchrun (Elastic Launch)", section "Environment Variables".
    [2] SchedMD, "srun", section "OUTPUT ENVIRONMENT VARIABLES".
    [3] Open MPI, `mpirun(1)` and "Environment variables" (`OMPI_COMM_WORLD_*`).
    [4] MPICH, "Hydra Process Management Framework" (`PMI_*`); Intel MPI Library Developer
        Reference (`MPI_LOCALRANKID`, `MPI_LOCALNRANKS`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from wattree.errors import RunError
from wattree.runtime.colocation.environment import PROCESSES_PER_DEVICE, whole_from

#: Where the ranks meet that `wattree train` started itself: a file, which needs no free port.
STORE = "WATTREE_TRAIN_STORE"
#: What its own launcher is called.
OWN = "wattree"
#: Ports below the range from which Linux gives out ports of outgoing connections (32768).
_FIRST_PORT, _PORTS = 20_000, 12_000
_DEFAULT_PORT = 29_500


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """Names of the environment variables of a launcher.

    Attributes:
        name: What people call it.
        rank, world, local_rank, local_world: Variables; of the last one all that may have it.
        job: Variables that differ between jobs and are the same on all hosts of one.
        address: Variables with a list of hosts, the first of which has rank 0.
        help: What to do where it does not say where ranks meet.
    """

    name: str
    rank: str
    world: str
    local_rank: str
    local_world: tuple[str, ...]
    job: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    help: str


#: The first that is there is taken. torchrun stands first: it may run under one of the others.
LAUNCHERS = (
    _Launcher(
        name="torchrun",
        rank="RANK",
        world="WORLD_SIZE",
        local_rank="LOCAL_RANK",
        local_world=("LOCAL_WORLD_SIZE",),
        help="torchrun sets MASTER_ADDR and MASTER_PORT; whoever else sets RANK sets them, too",
    ),
    _Launcher(
        name="mpirun",
        rank="OMPI_COMM_WORLD_RANK",
        world="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"),
        help="name the host of rank 0: mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 …",
    ),
    # Slurm's own variables come before PMI's, which `srun --mpi=pmi2` sets as well.
    _Launcher(
        name="srun",
        rank="SLURM_PROCID",
        world="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        local_world=("SLURM_STEP_TASKS_PER_NODE",),
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        address=("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
        help="export MASTER_ADDR, the host of rank 0, before srun",
    ),
    _Launcher(
        name="mpiexec",
        rank="PMI_RANK",
        world="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_world=("MPI_LOCALNRANKS",),
        job=("PMI_JOBID",),
        help="name the host of rank 0: mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 …",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One rank among those of a job.

    Attributes:
        rank, world: Number of this process, and of all.
        local_rank, local_world: The same on this host.
        address, port: Where ranks meet; empty and 0 where `store` says it, and for one rank.
        store: File through which they meet; empty where they do by `address`.
        job: Identifies the job, by variables of its launcher; empty where it has none.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str = ""
    port: int = 0
    store: str = ""
    launcher: str = OWN
    job: str = ""


def launch_from(environment: Mapping[str, str]) -> Launch | None:
    """Return the launch settings from the environment; None if no launcher started this process.

    Raises:
        RunError: A launcher said something that cannot be, or not where ranks meet; what to do.
    """
    for launcher in LAUNCHERS:
        if launcher.rank in environment and launcher.world in environment:
            return _launch(launcher, environment)
    return None


def _launch(launcher: _Launcher, environment: Mapping[str, str]) -> Launch:
    problems: list[str] = []
    rank = whole_from(environment, launcher.rank, problems)
    world = whole_from(environment, launcher.world, problems)
    local_rank = whole_from(environment, launcher.local_rank, problems, missing=rank)
    local_world = next(
        (_tasks_here(environment[name]) for name in launcher.local_world if name in environment), 0
    )
    if not problems and not 0 <= rank < world:
        problems.append(
            f"{launcher.rank}: found {rank}, expected a rank below {launcher.world}={world}"
        )
    store = environment.get(STORE, "")
    address = environment.get("MASTER_ADDR", "")
    for name in launcher.address:
        address = address or first_host(environment.get(name, ""))
    if not address and world == local_world:
        address = "127.0.0.1"
    if not store and not address:
        problems.append(f"MASTER_ADDR: is missing, expected the host of rank 0; {launcher.help}")
    port = 0
    job = " ".join(f"{name}={environment[name]}" for name in launcher.job if name in environment)
    if not store:
        port = (
            whole_from(environment, "MASTER_PORT", problems)
            if "MASTER_PORT" in environment
            else _port(job)
        )
    if port >= 1 << 16 or not (port or store or world == 1 or problems):
        problems.append(f"MASTER_PORT: found {port}, expected a port from 1 to 65535")
    if problems:
        raise RunError(f"environment of {launcher.name}", problems)
    return Launch(
        rank=rank,
        world=world,
        local_rank=local_rank,
        local_world=max(local_world, local_rank + 1),
        address="" if store else address,
        port=port,
        store=store,
        launcher=OWN if store or PROCESSES_PER_DEVICE in environment else launcher.name,
        job=job,
    )


def _tasks_here(text: str) -> int:
    """Return the tasks of a node from `4`, or from Slurm's `4(x2),3` of which the first counts."""
    found = re.match(r"\s*([0-9]{1,9})", text)
    return int(found.group(1)) if found else 0


def _port(job: str) -> int:
    """Return a port that is the same for all ranks of a job, and rarely for other jobs."""
    if not job:
        return _DEFAULT_PORT
    digest = hashlib.sha256(job.encode()).digest()
    return _FIRST_PORT + int.from_bytes(digest[:4], "big") % _PORTS


def first_host(hosts: str) -> str:
    """Return the first host of a list as Slurm writes it: `node[03-05,9],gpu1` is `node03`."""
    found = re.match(r"\s*([^,\[\s]*)(?:\[([0-9]++)[^\]]*+\])?([^,\[\s]*)", hosts)
    if found is None:
        return ""
    head, number, tail = found.groups()
    return f"{head}{number or ''}{tail}"
