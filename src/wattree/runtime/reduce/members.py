"""Which ranks of a process group share a device, exchanged once."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from wattree.errors import CommunicationError, RunError
from wattree.process import boot_id
from wattree.runtime.colocation.environment import ColocatedProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The ranks of a group by device.

    Attributes:
        place: Of this process on its device; 0 leads.
        ranks: Global ranks on this device, in the order of the group.
        leaders: Global ranks that lead, one for each device.
        everybody: Global ranks of the group.
    """

    place: int
    ranks: tuple[int, ...]
    leaders: tuple[int, ...]
    everybody: tuple[int, ...]


def device_of(group: Any, colocation: ColocatedProcess | None, processes: int | None) -> int:
    """Return the number of this process's device.

    Args:
        group: Of torch.distributed.
        colocation: Settings of the launcher; None without one.
        processes: Of each device, one after another; None is what the launcher said, or one.

    Raises:
        RunError: Ranks do not divide by that.
    """
    if processes is not None:
        if processes < 1 or dist.get_world_size(group) % processes:
            raise RunError(
                "processes_per_device",
                [
                    f"found {processes}, expected a divisor of the {dist.get_world_size(group)} "
                    "ranks of the process group"
                ],
            )
        return dist.get_rank(group) // processes
    return dist.get_rank() if colocation is None else colocation.device


def members_of(process_group: Any, facts: Sequence[Mapping[str, Any]]) -> Members:
    """Return who shares this process's device.

    Args:
        process_group: Of torch.distributed.
        facts: Of every rank of the group, in order: `device`, a number, and `host`.

    Raises:
        CommunicationError: Ranks of a device are on several hosts.
    """
    everybody = dist.get_process_group_ranks(process_group)
    by_device: dict[int, list[int]] = {}
    hosts: dict[int, set[str]] = {}
    for rank, colocation in zip(everybody, facts, strict=True):
        by_device.setdefault(colocation["device"], []).append(rank)
        hosts.setdefault(colocation["device"], set()).add(colocation["host"])
    for device, found in hosts.items():
        if len(found) > 1:
            raise CommunicationError(
                f"device {device}: found ranks {_listed(by_device[device])} on the hosts "
                f"{', '.join(sorted(found))}, expected one host: ranks of a device follow one "
                "another, and hosts have as many as their devices times the processes of each"
            )
    mine = by_device[facts[dist.get_rank(process_group)]["device"]]
    return Members(
        place=mine.index(dist.get_rank()),
        ranks=tuple(mine),
        leaders=tuple(ranks[0] for ranks in by_device.values()),
        everybody=tuple(everybody),
    )


def agree(process_group: Any, mine: Any) -> list[Any]:
    """Return the message of every rank of a group, in order; a collective call."""
    problem_of_rank: list[Any] = [None] * dist.get_world_size(process_group)
    dist.all_gather_object(problem_of_rank, mine, group=process_group)
    return problem_of_rank


def host_name() -> str:
    """Return a key of this host, of its boot and of its container."""
    # Containers of one host do not see each other's processes: they count as hosts of their own.
    try:
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path that exists
    except OSError:
        space = ""
    return f"{socket.gethostname()} {boot_id()[:8]} {space}".strip()


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
