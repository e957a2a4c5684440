"""Environment variables from the launcher to the processes of a device.

torchrun's variables have torchrun's meaning, `LOCAL_RANK` included: the number of the accelerator
that is this process's among those that it *sees*. It sees its own alone (`CUDA_VISIBLE_DEVICES`
names it by UUID), so `LOCAL_RANK` is 0 there in every process: `cuda`, `cuda:0`, `cuda:LOCAL_RANK`
and `rank % torch.cuda.device_count()` are all the same, right device, in a script that knows
nothing of co-location. On the CPU, where nothing is numbered by it, `LOCAL_RANK` is the number of
the process on its node. `WATTREE_LOCAL_RANK` is that everywhere. `LOCAL_WORLD_SIZE` counts the
processes of the node.

References:
    PyTorch, "torchrun (Elastic Launch)", section "Environment Variables".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wattree.errors import RunError

#: Processes on each device, `q`.
PROCESSES_PER_DEVICE = "WATTREE_PROCESSES_PER_DEVICE"
#: Number of this process's device over the whole job, from 0.
DEVICE = "WATTREE_DEVICE"
#: Number of this process on its device, from 0; 0 leads.
DEVICE_RANK = "WATTREE_DEVICE_RANK"
#: Number of this process on its node, whatever `LOCAL_RANK` is.
LOCAL_RANK = "WATTREE_LOCAL_RANK"
#: How gradients are reduced: one of `REDUCTIONS`.
REDUCE = "WATTREE_REDUCE"
#: What becomes of the batch: one of `BATCH_RULES`.
BATCH_RULE = "WATTREE_BATCH_RULE"
#: Beginning of the names of all shared memory of these processes; the launcher removes what has it.
SHARED = "WATTREE_SHARED"
#: Loader workers of this process, where the user named a number for the device.
LOADER_WORKERS = "WATTREE_LOADER_WORKERS"
#: Token of the job, by which its launcher finds what it started, however deep.
JOB = "WATTREE_JOB"
#: Number of a process with which a launcher ends: set by programs that start launchers.
PARENT = "WATTREE_PARENT"

#: The first is the default.
REDUCTIONS = ("hierarchical", "flat", "mpi")
BATCH_RULES = ("fixed-global", "fixed-per-process")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocatedProcess:
    """This process among those of its device.

    Attributes:
        processes: Of each device, `q`.
        device: Number of the device over the whole job.
        device_rank: Number of this process on it; 0 leads.
        local_rank: Number of this process on its node.
        reduce: One of `REDUCTIONS`.
        batch_rule: One of `BATCH_RULES`.
        shared: Beginning of names of shared memory; empty where no one cleans up after them.
        loader_workers: Of this process; None where nothing was set.
    """

    processes: int
    device: int
    device_rank: int
    local_rank: int = 0
    reduce: str = REDUCTIONS[0]
    batch_rule: str = BATCH_RULES[0]
    shared: str = ""
    loader_workers: int | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader of its device."""
        return self.device_rank == 0

    def variables(self) -> dict[str, str]:
        """Return the environment variables with these values."""
        variables = {
            PROCESSES_PER_DEVICE: str(self.processes),
            DEVICE: str(self.device),
            DEVICE_RANK: str(self.device_rank),
            LOCAL_RANK: str(self.local_rank),
            REDUCE: self.reduce,
            BATCH_RULE: self.batch_rule,
        }
        if self.shared:
            variables[SHARED] = self.shared
        if self.loader_workers is not None:
            variables[LOADER_WORKERS] = str(self.loader_workers)
        return variables


def colocation_from(environment: Mapping[str, str]) -> ColocatedProcess | None:
    """Return the settings from the environment; None if no such launcher started this process.

    Raises:
        RunError: Variables that cannot be; all of them.
    """
    if PROCESSES_PER_DEVICE not in environment:
        return None
    problems: list[str] = []
    processes = whole_from(environment, PROCESSES_PER_DEVICE, problems)
    device = whole_from(environment, DEVICE, problems)
    device_rank = whole_from(environment, DEVICE_RANK, problems)
    local_rank = whole_from(environment, LOCAL_RANK, problems) if LOCAL_RANK in environment else 0
    if not problems and not 0 <= device_rank < processes:
        problems.append(
            f"{DEVICE_RANK}: found {device_rank}, expected a number below "
            f"{PROCESSES_PER_DEVICE}={processes}"
        )
    workers = None
    if LOADER_WORKERS in environment:
        workers = whole_from(environment, LOADER_WORKERS, problems)
    reduce = _one_of(environment, REDUCE, REDUCTIONS, problems)
    batch_rule = _one_of(environment, BATCH_RULE, BATCH_RULES, problems)
    if problems:
        raise RunError("environment of wattree launch", problems)
    return ColocatedProcess(
        processes=processes,
        device=device,
        device_rank=device_rank,
        local_rank=local_rank,
        reduce=reduce,
        batch_rule=batch_rule,
        shared=environment.get(SHARED, ""),
        loader_workers=workers,
    )


def whole_from(
    environment: Mapping[str, str], name: str, problems: list[str], *, missing: int | None = None
) -> int:
    """Return the whole number of a variable; 0 after adding what is wrong to `problems`."""
    text = environment.get(name)
    if text is None and missing is not None:
        return missing
    if text is None or not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        problems.append(f"{name}: found {text!r}, expected a whole number from 0")
        return 0
    return int(text)


def _one_of(
    environment: Mapping[str, str], name: str, known: tuple[str, ...], problems: list[str]
) -> str:
    text = environment.get(name, known[0])
    if text not in known:
        problems.append(f"{name}: found {text!r}, expected one of {', '.join(known)}")
    return text
