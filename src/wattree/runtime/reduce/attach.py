"""Gives a DDP model its reduction: finds who shares a device, makes groups, registers the hook."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wattree.errors import CommunicationError, RunError, UnknownNameError
from wattree.runtime.colocation.environment import REDUCTIONS, Colocation, colocation_from
from wattree.runtime.reduce.across import GroupSum
from wattree.runtime.reduce.device import Hierarchical
from wattree.runtime.reduce.flat import Flat
from wattree.runtime.reduce.hook import Average, Reduction
from wattree.runtime.reduce.meeting import Meeting, shared_file, shared_path
from wattree.runtime.reduce.members import Members, agree, host_name, members_of
from wattree.runtime.reduce.rooms import SharedRooms
from wattree.runtime.reduce.samples import Samples, rows_of
from wattree.runtime.transfers import Traffic

__all__ = ["attach"]

#: Time that a rank has to come to a bucket, unless said otherwise; as of the groups of layers. [s]
_PATIENCE_S = 180.0
#: Files of a device: where its processes meet, and rooms for two buckets in turn.
_FILES = ("meeting", "even", "odd")


def attach(
    model: DistributedDataParallel,
    *,
    method: str | None = None,
    processes_per_device: int | None = None,
    compress: Literal["bf16"] | None = None,
    average: Literal["ranks", "samples"] = "ranks",
    count: Callable[[Sequence[Any], Mapping[str, Any]], int] = rows_of,
    timeout_s: float = _PATIENCE_S,
) -> Reduction:
    """Let a DDP model average its gradients as fits several processes on a device.

    A collective call: all ranks of the model's process group, in the same order for several models,
    before the first backward pass.

    Args:
        model: Wrapped by DDP, without a communication hook of its own.
        method: `hierarchical` (sums on each device in shared memory, then among one leader of each
            device), `flat` (all ranks at once, gloo), `mpi` (all ranks at once, mpi4py) or `nccl`
            (all ranks at once, where the library allows several of a device); None is what
            `wattree launch` said, or hierarchical.
        processes_per_device: Ranks that share a device, `q`: that many, one after another; None is
            what `wattree launch` said, or 1.
        compress: `bf16` sends gradients with 8 bits of precision; they are added up in float32.
        average: `ranks` is DDP's mean over ranks, in which the samples of a rank with a short last
            batch count for more; `samples` weighs each rank by its samples.
        count: Samples of a forward pass, from its positional and its named arguments; the first dim
            of the first tensor unless said otherwise.
        timeout_s: Time after which a rank counts as missing. [s]

    Raises:
        CommunicationError: Ranks do not agree, or cannot share memory.
        RunError: The environment says what cannot be.
        UnknownNameError: There is no such method.
    """
    told = colocation_from(os.environ)
    method = method or (REDUCTIONS[0] if told is None else told.reduce)
    if method not in REDUCTIONS:
        raise UnknownNameError(kind="reduction", name=method, known=REDUCTIONS)
    group = model.process_group
    device = _device_of(group, told, processes_per_device)
    members = _members(group, device, method, compress, average)
    patience = timedelta(seconds=timeout_s)
    traffic = Traffic()
    if method == "hierarchical" and len(members.everybody) > len(members.leaders):
        way = _hierarchical(group, members, traffic, patience, compressed=compress == "bf16")
    else:
        way = _flat(members, traffic, patience, compressed=compress == "bf16")
    first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    reduction = Reduction(
        way,
        method=method,
        samples=Samples(model, by_samples=average == "samples", count=count),
        rank=dist.get_rank(),
        traffic=traffic,
        device=first.device,
    )
    # DDP compares annotations, which are text in modules like this one; a lambda has none.
    model.register_comm_hook(reduction, lambda state, bucket: state.hook(bucket))
    return reduction


def _device_of(group: Any, told: Colocation | None, processes: int | None) -> int:
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
    return dist.get_rank() if told is None else told.device


def _members(group: Any, device: int, method: str, compress: str | None, average: str) -> Members:
    mine = {
        "device": device,
        "host": host_name(),
        "wanted": f"{method}, compression {compress or 'none'}, mean over {average}",
    }
    facts = agree(group, mine)
    wanted = {told["wanted"] for told in facts}
    if len(wanted) > 1:
        listed = "; ".join(
            f"rank {rank} wants {told['wanted']}"
            for rank, told in zip(dist.get_process_group_ranks(group), facts, strict=True)
        )
        raise CommunicationError(f"ranks want to average gradients in different ways: {listed}")
    return members_of(group, facts)


def _hierarchical(
    group: Any, members: Members, traffic: Traffic, patience: timedelta, *, compressed: bool
) -> Average:
    patience_s = patience.total_seconds()
    meeting, *rooms = _shared_files(group, members)
    across = None
    if len(members.leaders) > 1 and members.place == 0:
        leaders = dist.new_group(
            list(members.leaders), timeout=patience, use_local_synchronization=True
        )
        across = GroupSum(leaders, traffic, patience_s=patience_s, rank=dist.get_rank())
    even, odd = (SharedRooms(file, len(members.ranks)) for file in rooms)
    return Hierarchical(
        Meeting(meeting, members.place, members.ranks, patience_s=patience_s),
        (even, odd),
        across,
        devices=len(members.leaders),
        ranks=len(members.everybody),
        compressed=compressed,
    )


def _flat(members: Members, traffic: Traffic, patience: timedelta, *, compressed: bool) -> Average:
    everybody = dist.new_group(
        list(members.everybody), timeout=patience, use_local_synchronization=True
    )
    across = GroupSum(everybody, traffic, patience_s=patience.total_seconds(), rank=dist.get_rank())
    return Flat(across, ranks=len(members.everybody), compressed=compressed)


def _shared_files(group: Any, members: Members) -> list[int]:
    """Return descriptors of the leader's files; they have no name that could be left behind."""
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
    problems = [said for said in agree(group, problem) if said]
    if problems:
        for file in own:
            os.close(file)
        raise CommunicationError(f"{problems[0]}; WATTREE_REDUCE=flat shares no memory")
    return own
