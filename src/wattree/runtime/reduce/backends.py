"""Makes a backend that averages gradients, with its process groups and shared memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from wattree.errors import HardwareError
from wattree.runtime.reduce.across import GroupSum
from wattree.runtime.reduce.device import Hierarchical
from wattree.runtime.reduce.device_buffers import DeviceBuffers
from wattree.runtime.reduce.flat import Flat
from wattree.runtime.reduce.hook import Average
from wattree.runtime.reduce.mean import Across
from wattree.runtime.reduce.meeting import MemberMeeting, shared_file, shared_path, take_place
from wattree.runtime.reduce.members import Members, agree
from wattree.runtime.reduce.mpi import MpiSum
from wattree.runtime.reduce.nccl import check_nccl
from wattree.runtime.reduce.shared_buffers import HostBuffers, SharedBuffers
from wattree.runtime.transfers import SentTraffic

#: Files of a device: where its processes meet, and buffers for two buckets in turn.
_FILES = ("meeting", "even", "odd")


def make_backend(
    method: str,
    process_group: Any,
    members: Members,
    device: Any,
    *,
    traffic: SentTraffic,
    timeout_s: float,
) -> Average:
    """Return a backend that averages over a process group; a collective call of its ranks.

    Args:
        method: One of `REDUCTIONS`.
        process_group: Of torch.distributed.
        members: Its ranks by device.
        device: Of the gradients.
        traffic: Where to count what this process sends.
        timeout_s: Time after which a rank counts as missing. [s]

    Raises:
        CommunicationError: Ranks are not what the method needs.
        HardwareError: Ranks of a device cannot share memory, or NCCL takes one of them.
    """
    if method == "hierarchical" and len(members.everybody) > len(members.leaders):
        return _hierarchical(process_group, members, device, traffic, timeout_s)
    return _flat(members, method, device, traffic, timeout_s)


def _hierarchical(
    group: Any, members: Members, device: Any, traffic: SentTraffic, timeout_s: float
) -> Average:
    meeting, *buffers = _shared_files(group, members)
    across = None
    if len(members.leaders) > 1:
        # Leaders are alone on their devices, as NCCL wants it. The others make a group, too, of
        # themselves: names of groups count those that a process has, and have to stay in step.
        is_leader = members.place == 0
        backend = "nccl" if is_leader and device.type != "cpu" else "gloo"
        ranks = members.leaders if is_leader else (dist.get_rank(),)
        group = _group_sum(ranks, backend, traffic, timeout_s)
        across = group if is_leader else None
    even, odd = _buffers(buffers, members, device, timeout_s)
    return Hierarchical(
        MemberMeeting(meeting, members.place, members.ranks, patience_s=timeout_s),
        (even, odd),
        across,
        devices=len(members.leaders),
        ranks=len(members.everybody),
    )


def _buffers(
    files: Sequence[int], members: Members, device: Any, timeout_s: float
) -> tuple[SharedBuffers, SharedBuffers]:
    count = len(members.ranks)
    if device.type == "cpu":
        return HostBuffers(files[0], count), HostBuffers(files[1], count)
    for file in files:
        os.close(file)
    group = _group(members.ranks, "gloo", timeout_s)  # tells handles of memory
    first, second = (
        DeviceBuffers(members.place, device, lambda mine: agree(group, mine)) for _ in range(2)
    )
    return first, second


def _flat(
    members: Members, method: str, device: Any, traffic: SentTraffic, timeout_s: float
) -> Average:
    ranks = members.everybody
    is_shared = len(ranks) > len(members.leaders)
    across: Across
    if method == "mpi":
        world = dist.get_world_size()
        across = MpiSum(ranks, rank=dist.get_rank(), world=world, traffic=traffic)
    else:
        if method == "nccl" and is_shared:
            check_nccl()
        # gloo takes several ranks of a device, by way of the host; NCCL is there for the others.
        is_native = device.type != "cpu" and (method == "nccl" or not is_shared)
        across = _group_sum(ranks, "nccl" if is_native else "gloo", traffic, timeout_s)
    return Flat(across, ranks=len(ranks))


def _group_sum(
    ranks: Sequence[int], backend: str, traffic: SentTraffic, timeout_s: float
) -> GroupSum:
    group = _group(ranks, backend, timeout_s)
    return GroupSum(group, traffic, patience_s=timeout_s, rank=dist.get_rank())


def _group(ranks: Sequence[int], backend: str, timeout_s: float) -> Any:
    return dist.new_group(
        list(ranks),
        backend=backend,
        timeout=timedelta(seconds=timeout_s),
        use_local_synchronization=True,
    )


def _shared_files(group: Any, members: Members) -> list[int]:
    """Return descriptors of the leader's files, which have no name, so none can be left behind."""
    own = [shared_file(f"wattree-{name}") for name in _FILES] if members.place == 0 else []
    offers = agree(group, (os.getpid(), own))
    leader = members.ranks[0]
    process, files = offers[members.everybody.index(leader)]
    problem = ""
    if members.place:
        try:
            own = [os.open(shared_path(process, file), os.O_RDWR | os.O_CLOEXEC) for file in files]
        except OSError as error:
            problem = (
                f"rank {dist.get_rank()} cannot open the shared memory of rank {leader} "
                f"({error.strerror}): both have to run as one user, in one container"
            )
    if own:
        # Before any member goes on: whoever waits for one without a place takes it for gone.
        take_place(own[0], members.place)
    problems = [problem_of_rank for problem_of_rank in agree(group, problem) if problem_of_rank]
    if problems:
        for file in own:
            os.close(file)
        raise HardwareError(f"{problems[0]}; WATTREE_REDUCE=flat shares no memory")
    return own
