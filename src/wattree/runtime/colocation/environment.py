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
from typing import Any

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
        loader_workers: Of this process; None where nothing was set.
    """

    processes: int
    device: int
    device_rank: int
    local_rank: int = 0
    reduce: str = REDUCTIONS[0]
    batch_rule: str = BATCH_RULES[0]
    loader_workers: int | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leader of its device."""
        return self.device_rank == 0

    def variables(self) -> dict[str, str]:
        """Return the environment variables with these values; without those that say nothing."""
        names = {**_NUMBERS, **{field: name for field, (name, _) in _WORDS.items()}}
        found = {name: getattr(self, field) for field, name in names.items()}
        return {name: str(value) for name, value in found.items() if value is not None}


#: Field of `ColocatedProcess` → its variable; of words those that are known.
_NUMBERS = {
    "processes": PROCESSES_PER_DEVICE,
    "device": DEVICE,
    "device_rank": DEVICE_RANK,
    "local_rank": LOCAL_RANK,
    "loader_workers": LOADER_WORKERS,
}
_OPTIONAL = (LOCAL_RANK, LOADER_WORKERS)
_WORDS = {"reduce": (REDUCE, REDUCTIONS), "batch_rule": (BATCH_RULE, BATCH_RULES)}


def colocation_from(environment: Mapping[str, str]) -> ColocatedProcess | None:
    """Return the settings from the environment; None if no such launcher started this process.

    Raises:
        RunError: Variables that cannot be; all of them.
    """
    if PROCESSES_PER_DEVICE not in environment:
        return None
    problems: list[str] = []
    numbers: dict[str, Any] = {
        field: whole_from(environment, name, problems)
        for field, name in _NUMBERS.items()
        if name in environment or name not in _OPTIONAL
    }
    if not problems and numbers["device_rank"] >= numbers["processes"]:
        problems.append(
            f"{DEVICE_RANK}: found {numbers['device_rank']}, expected a number below "
            f"{PROCESSES_PER_DEVICE}={numbers['processes']}"
        )
    words: dict[str, Any] = {
        field: _one_of(environment, name, known, problems)
        for field, (name, known) in _WORDS.items()
    }
    if problems:
        raise RunError("environment of wattree launch", problems)
    return ColocatedProcess(**numbers, **words)


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
