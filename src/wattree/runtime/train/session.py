"""The ranks of a job joined: process groups of replicas and of their parts, and the device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from wattree.errors import CommunicationError, HardwareError
from wattree.measure.allocator import cache_freed_memory
from wattree.runtime.group import Group
from wattree.runtime.launch import Launch
from wattree.runtime.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSession:
    """A rank among the others.

    Attributes:
        launch: Its number.
        recipe: What the ranks do together.
        device: Of this rank.
        group: Ranks of this replica, which share the model.
        data_group: Ranks with the same part of the model; None where there is one replica.
        control: All ranks, on the CPU: losses, checkpoints, agreement.
    """

    launch: Launch
    recipe: Recipe
    device: torch.device
    group: Group
    data_group: Any
    control: Any

    @property
    def rank(self) -> int:
        """Number of this rank among all."""
        return self.launch.rank

    @property
    def replica(self) -> int:
        """Number of this rank's replica."""
        return self.launch.rank // self.recipe.tp

    @property
    def place(self) -> int:
        """Number of this rank in its replica."""
        return self.launch.rank % self.recipe.tp


@contextlib.contextmanager
def joined_ranks(
    launch: Launch, recipe: Recipe, *, kind: str, timeout_s: float
) -> Iterator[RankSession]:
    """Join the ranks of a job while the block runs.

    Args:
        launch: This rank, and where all meet.
        recipe: How they share work.
        kind: `cpu` or `cuda`.
        timeout_s: Time after which a rank counts as missing. [s]

    Raises:
        HardwareError: This host has fewer devices than ranks.
        CommunicationError: Not all ranks came.
    """
    device = _device(kind, launch)
    patience = timedelta(seconds=timeout_s)
    # NCCL takes one rank of a device.
    backend = "nccl" if kind != "cpu" and recipe.processes_per_device == 1 else "gloo"
    _join(launch, backend, patience)
    try:
        yield RankSession(
            launch=launch,
            recipe=recipe,
            device=device,
            group=_own(recipe, launch.rank, timeout_s),
            data_group=_data_group(recipe, launch.rank, patience),
            control=dist.new_group(backend="gloo", timeout=patience),
        )
    finally:
        # Ranks that are in the middle of a collective when another one fails cannot leave well.
        with contextlib.suppress(Exception):
            dist.destroy_process_group()


def _device(kind: str, launch: Launch) -> torch.device:
    if kind == "cpu":
        cache_freed_memory()
        if "OMP_NUM_THREADS" not in os.environ:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
            torch.set_num_threads(max(1, cores // launch.local_world))
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if launch.local_rank >= count:
        raise HardwareError(
            f"rank {launch.rank}: local rank {launch.local_rank} needs a device of its own, but "
            f"this host has {count}; start fewer ranks here, or use --device cpu"
        )
    torch.cuda.set_device(launch.local_rank)
    return torch.device("cuda", launch.local_rank)


def _join(launch: Launch, backend: str, patience: timedelta) -> None:
    where = f"tcp://{launch.address}:{launch.port}"
    meeting: dict[str, Any] = {"init_method": where}
    if launch.store or not launch.address:
        # Ranks of one host: names of hosts need not resolve, and nothing leaves it.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        where = f"file://{launch.store}"
        meeting = {"init_method": where} if launch.store else {"store": dist.HashStore()}
    try:
        dist.init_process_group(
            backend,
            rank=launch.rank,
            world_size=launch.world,
            timeout=patience,
            **meeting,
        )
    except (RuntimeError, ValueError) as error:
        text = str(error).strip().splitlines()
        raise CommunicationError(
            f"rank {launch.rank} of {launch.world}: not all ranks came to {where} within "
            f"{patience.total_seconds():g} s ({text[0][:200] if text else type(error).__name__}); "
            f"expected {launch.world} processes of {launch.launcher} that reach each other there"
        ) from error


def _own(recipe: Recipe, rank: int, timeout_s: float) -> Group:
    """Return the ranks of this replica; every rank takes part in making every group."""
    if recipe.dp == 1:
        return Group(timeout_s=timeout_s)
    groups = [
        dist.new_group(
            list(range(replica * recipe.tp, (replica + 1) * recipe.tp)),
            timeout=timedelta(seconds=timeout_s),
        )
        for replica in range(recipe.dp)
    ]
    return Group(groups[rank // recipe.tp], timeout_s=timeout_s)


def _data_group(recipe: Recipe, rank: int, patience: timedelta) -> Any:
    if recipe.dp == 1:
        return None
    groups = [
        dist.new_group(list(range(place, recipe.ranks, recipe.tp)), timeout=patience)
        for place in range(recipe.tp)
    ]
    return groups[rank % recipe.tp]
