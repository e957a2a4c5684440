"""Gives a DDP model its reduction: finds who shares a device, makes groups, registers the hook."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wattree.errors import CommunicationError, HardwareError, UnknownNameError
from wattree.runtime.colocation.environment import REDUCTIONS, colocation_from
from wattree.runtime.reduce.across import GroupSum
from wattree.runtime.reduce.device import Hierarchical
from wattree.runtime.reduce.flat import Flat
from wattree.runtime.reduce.hook import Average, Reduction
from wattree.runtime.reduce.mean import Across
from wattree.runtime.reduce.meeting import Meeting, shared_file, shared_path
from wattree.runtime.reduce.members import Members, agree, device_of, host_name, members_of
from wattree.runtime.reduce.mpi import MpiSum
from wattree.runtime.reduce.nccl import check_nccl
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
    traffic: Traffic | None = None,
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
        traffic: Where to count what this process sends to other devices (`flat` and `mpi`: to other
            ranks); None makes a new one, the result's `traffic`.

    Raises:
        CommunicationError: Ranks do not agree, or are not what the method needs.
        HardwareError: Ranks of a device cannot share memory, or NCCL takes one of them.
        RunError: The environment says what cannot be.
        UnknownNameError: There is no such method.
    """
    told = colocation_from(os.environ)
    method = method or (REDUCTIONS[0] if told is None else told.reduce)
    if method not in REDUCTIONS:
        raise UnknownNameError(kind="reduction", name=method, known=REDUCTIONS)
    group = model.process_group
    device = device_of(group, told, processes_per_device)
    members = _members(group, device, method, compress, average)
    traffic = traffic or Traffic()
    first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    if method == "hierarchical" and len(members.everybody) > len(members.leaders):
        way = _hierarchical(group, members, first.device, traffic, timeout_s)
    else:
        way = _flat(members, method, first.device, traffic, timeout_s)
    way.compressed = compress == "bf16"
    reduction = Reduction(
        way,
        method=method,
        samples=Samples(model, by_samples=average == "samples", count=count),
        rank=dist.get_rank(),
        traffic=traffic,
        device=first.device,
    )
    # Its thread would keep it, and shared memory with it, when the model is gone.
    weakref.finalize(model, reduction.close).atexit = False
    # DDP compares annotations, which are text in modules like this one; a lambda has none.
    model.register_comm_hook(reduction, lambda state, bucket: state.hook(bucket))
    return reduction


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
        raise CommunicationError(f"ranks disagree on how to average gradients: {listed}")
    return members_of(group, facts)


def _hierarchical(
    group: Any, members: Members, device: Any, traffic: Traffic, timeout_s: float
) -> Average:
    meeting, *rooms = _shared_files(group, members)
    across = None
    if len(members.leaders) > 1:
        # Leaders are alone on their devices, as NCCL wants it. The others make a group, too, of
        # themselves: names of groups count those that a process has, and have to stay in step.
        is_leader = members.place == 0
        backend = "nccl" if is_leader and device.type != "cpu" else "gloo"
        ranks = members.leaders if is_leader else (dist.get_rank(),)
        group = _group_sum(ranks, backend, traffic, timeout_s)
        across = group if is_leader else None
    even, odd = (SharedRooms(file, len(members.ranks)) for file in rooms)
    return Hierarchical(
        Meeting(meeting, members.place, members.ranks, patience_s=timeout_s),
        (even, odd),
        across,
        devices=len(members.leaders),
        ranks=len(members.everybody),
    )


def _flat(
    members: Members, method: str, device: Any, traffic: Traffic, timeout_s: float
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


def _group_sum(ranks: Sequence[int], backend: str, traffic: Traffic, timeout_s: float) -> GroupSum:
    group = dist.new_group(
        list(ranks),
        backend=backend,
        timeout=timedelta(seconds=timeout_s),
        use_local_synchronization=True,
    )
    return GroupSum(group, traffic, patience_s=timeout_s, rank=dist.get_rank())


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
        raise HardwareError(f"{problems[0]}; WATTREE_REDUCE=flat shares no memory")
    return own
