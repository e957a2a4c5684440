"""Gives a DDP model its reduction: finds who shares a device, makes groups, registers the hook."""

from __future__ import annotations

import os
import weakref
from typing import Any, Literal

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from wattree.errors import CommunicationError, UnknownNameError
from wattree.runtime.colocation.environment import REDUCTIONS, colocation_from
from wattree.runtime.reduce.backends import make_backend
from wattree.runtime.reduce.hook import Reduction
from wattree.runtime.reduce.members import Members, agree, device_of, host_name, members_of
from wattree.runtime.transfers import SentTraffic

#: Time that a rank has to come to a bucket, unless said otherwise; as of the groups of layers. [s]
_PATIENCE_S = 180.0


def attach(
    model: DistributedDataParallel,
    *,
    method: str | None = None,
    processes_per_device: int | None = None,
    compress: Literal["bf16"] | None = None,
    timeout_s: float = _PATIENCE_S,
    traffic: SentTraffic | None = None,
) -> Reduction:
    """Let a DDP model average its gradients as fits several processes on a device.

    A collective call: all ranks of the model's process group, in the same order for several models,
    before the first backward pass.

    Args:
        model: Wrapped by DDP, without a communication hook of its own.
        method: `hierarchical` (sums on each device in shared memory, then among one leader of each
            device), `flat` (all ranks at once, gloo) or `mpi` (all ranks at once, mpi4py); None is
            what `wattree launch` said, or hierarchical.
        processes_per_device: Ranks that share a device, `q`: that many, one after another; None is
            what `wattree launch` said, or 1.
        compress: `bf16` sends gradients with 8 bits of precision; they are added up in float32.
        timeout_s: Time after which a rank counts as missing. [s]
        traffic: Where to count what this process sends to other devices (`flat` and `mpi`: to other
            ranks); None makes a new one, the result's `traffic`.

    Raises:
        CommunicationError: Ranks do not agree, or are not what the method needs.
        HardwareError: Ranks of a device cannot share memory.
        RunError: The environment says what cannot be.
        UnknownNameError: There is no such method.
    """
    colocation = colocation_from(os.environ)
    method = method or (REDUCTIONS[0] if colocation is None else colocation.reduce)
    if method not in REDUCTIONS:
        raise UnknownNameError(kind="reduction", name=method, known=REDUCTIONS)
    group = model.process_group
    device = device_of(group, colocation, processes_per_device)
    members = _members(group, device, method, compress)
    traffic = traffic or SentTraffic()
    first = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    way = make_backend(method, group, members, first.device, traffic=traffic, timeout_s=timeout_s)
    way.compressed = compress == "bf16"
    place = {"rank": dist.get_rank(), "device": first.device}
    reduction = Reduction(way, method=method, model=model, traffic=traffic, **place)
    # Its thread would keep it, and shared memory with it, when the model is gone.
    weakref.finalize(model, reduction.close).atexit = False
    # DDP compares annotations, which are text in modules like this one; a lambda has none.
    model.register_comm_hook(reduction, lambda state, bucket: state.hook(bucket))
    return reduction


def _members(group: Any, device: int, method: str, compress: str | None) -> Members:
    mine = {
        "device": device,
        "host": host_name(),
        "wanted": f"{method}, compression {compress or 'none'}",
    }
    facts = agree(group, mine)
    wanted = {colocation["wanted"] for colocation in facts}
    if len(wanted) > 1:
        listed = "; ".join(
            f"rank {rank} wants {colocation['wanted']}"
            for rank, colocation in zip(dist.get_process_group_ranks(group), facts, strict=True)
        )
        raise CommunicationError(f"ranks disagree on how to average gradients: {listed}")
    return members_of(group, facts)
