"""The ranks of a job joined: process groups of replicas and of their parts, and the device."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from wattree.errors import CommunicationError, HardwareError
from wattree.measure.allocator import cache_freed_memory
from wattree.runtime.group import Group
from wattree.runtime.launch import Launch
from wattree.runtime.recipe import HOLDERS, Recipe

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSession:
    """A rank among the others.

    Attributes:
        launch: Its number.
        recipe: What the ranks do together.
        group: Ranks that share each layer, along tp.
        data_group: Ranks with the same part of the model; None where there is one.
        control: All ranks, on the CPU: losses, checkpoints, agreement.
        stage_group: Ranks with the other stages of the pipeline; None without one.
        context_group: Ranks with other positions of the same samples; None without any.
        shard_mesh: Ranks over which `fully_shard` shards, the inner dim, and replicates, the
            outer one; None where it does neither.
        expert_group: Ranks with other experts of the same layers; None without any.
        expert_mesh: As `shard_mesh`, of experts.
    """

    launch: Launch
    recipe: Recipe
    device: torch.device
    group: Group
    data_group: Any
    control: Any
    stage_group: Any = None
    context_group: Any = None
    shard_mesh: DeviceMesh | None = None
    expert_group: Any = None
    expert_mesh: DeviceMesh | None = None

    @property
    def rank(self) -> int:
        """Number of this rank among all."""
        return self.launch.rank

    @property
    def timeout(self) -> timedelta:
        """How long ranks wait for each other."""
        return timedelta(seconds=self.group.timeout_s)

    @property
    def replica(self) -> int:
        """Number of this rank's replica, which has samples of its own."""
        return self.recipe.grid.index(self.rank, ("dp", "fsdp", "ep"))

    @property
    def place(self) -> int:
        """Number of the part of the model that this rank has."""
        return self.recipe.grid.index(self.rank, ("pp", "tp"))

    @property
    def stage(self) -> int:
        """Number of this rank's pipeline stage."""
        return self.recipe.grid.index(self.rank, ("pp",))


@contextlib.contextmanager
def joined_ranks(
    launch: Launch, recipe: Recipe, *, kind: str, timeout_s: float
) -> Iterator[RankSession]:
    """Join the ranks of a job while the block runs.

    Args:
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
        yield _joined(launch, recipe, device, patience)
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


def _joined(
    launch: Launch, recipe: Recipe, device: torch.device, patience: timedelta
) -> RankSession:
    """Return a rank with its groups; every rank takes part in making every group."""
    made = {
        axes: _axis_group(recipe, axes, patience)
        for axes in (("tp",), HOLDERS, ("pp",), ("cp",), recipe.expert_axes)
    }
    return RankSession(
        launch=launch,
        recipe=recipe,
        device=device,
        group=Group(made["tp",], timeout_s=patience.total_seconds()),
        data_group=made[HOLDERS],
        control=dist.new_group(backend="gloo", timeout=patience),
        stage_group=made["pp",],
        context_group=made["cp",],
        shard_mesh=_shard_mesh(recipe, launch.rank, device, patience),
        expert_group=made[recipe.expert_axes],
        expert_mesh=_shard_mesh(recipe, launch.rank, device, patience, experts=True),
    )


def _axis_group(recipe: Recipe, axes: tuple[str, ...], patience: timedelta) -> Any:
    """Return the ranks that differ from this one along some axes alone; None for all, or one."""
    rows = recipe.grid.groups(axes).tolist()
    if len(rows[0]) == 1 and axes != ("tp",):
        return None
    if len(rows) == 1 and axes == ("tp",):
        return None  # all ranks, who have a group
    return dist.new_subgroups_by_enumeration(rows, timeout=patience)[0]


def _shard_mesh(
    recipe: Recipe,
    rank: int,
    device: torch.device,
    patience: timedelta,
    *,
    experts: bool = False,
) -> DeviceMesh | None:
    """Return over whom `fully_shard` replicates, and shards."""
    if not recipe.is_fully_sharded or (experts and recipe.options.ep == 1):
        return None
    from torch.distributed.device_mesh import DeviceMesh  # only such strategies load it

    replicated, sharded = recipe.shard_axes(experts=experts)
    dims = {"replicate": replicated, "shard": sharded}
    if not replicated:
        del dims["replicate"]
    # One that is kept whole is sharded over this rank alone.
    rows = {name: recipe.grid.groups(axes).tolist() for name, axes in dims.items()}
    groups = [dist.new_subgroups_by_enumeration(rows[n], timeout=patience)[0] for n in dims]
    mine = [next(row for row in rows[name] if rank in row) for name in dims]
    if len(dims) == 1:
        return DeviceMesh.from_group(groups[0], device.type, mesh_dim_names=("shard",))
    grid = torch.tensor([next(row for row in rows["shard"] if first in row) for first in mine[0]])
    return DeviceMesh.from_group(
        groups, device.type, mesh=grid, mesh_dim_names=("replicate", "shard")
    )
