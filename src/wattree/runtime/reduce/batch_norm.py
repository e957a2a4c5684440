"""Batch norm with statistics over all processes of a device, or over all ranks.

`torch.nn.SyncBatchNorm` does the same on accelerators, and refuses tensors of the CPU.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from wattree.runtime.colocation.environment import colocation_from
from wattree.runtime.reduce.members import agree, device_of, host_name, members_of


class SharedBatchNorm(_BatchNorm):
    """Batch norm over the samples of all ranks of a group, on any kind of device.

    Mean and variance are taken one after the other (two small all-reduces), so that large means do
    not cancel.

    Args:
        like: The layer whose parameters and statistics it takes over.
        process_group: Of torch.distributed, of its own; None for this process alone.
    """

    def __init__(self, like: Any, process_group: Any) -> None:
        super().__init__(
            like.num_features, like.eps, like.momentum, like.affine, like.track_running_stats
        )
        self.weight, self.bias = like.weight, like.bias
        self.running_mean, self.running_var = like.running_mean, like.running_var
        self.num_batches_tracked = like.num_batches_tracked
        self.process_group, self.training = process_group, like.training

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input, `(samples, features, …)`."""
        if not self.training or self.process_group is None:
            return super().forward(x)
        dims = [dim for dim in range(x.dim()) if dim != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = x.new_full((1,), x.numel() / max(x.shape[1], 1))
        *sums, rows = _Sum.apply(torch.cat([x.sum(dims), count]), self.process_group).split(
            [x.shape[1], 1]
        )
        mean = sums[0] / rows
        apart = x - mean.view(shape)
        variance = _Sum.apply((apart * apart).sum(dims), self.process_group) / rows
        self._track(mean.detach(), variance.detach(), float(rows.detach()))
        normal = apart * torch.rsqrt(variance + self.eps).view(shape)
        if not self.affine:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"batch norm: found {x.dim()} dims, expected (samples, features, …)")

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, rows: float) -> None:
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        rate = self.momentum
        if rate is None:  # the mean of all batches
            rate = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        unbiased = variance * (rows / max(rows - 1.0, 1.0))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)


class _Sum(torch.autograd.Function):
    """A sum over ranks; its gradients are summed in backward as well."""

    @staticmethod
    def forward(context: Any, part: Tensor, process_group: Any) -> Tensor:
        """Return the sum of all ranks' parts."""
        context.group = process_group
        total = part.contiguous().clone()
        dist.all_reduce(total, group=process_group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the sum of all ranks' gradients."""
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=context.group)
        return total, None


def share_batch_norm(
    module: nn.Module,
    *,
    over: Literal["device", "ranks"] = "device",
    processes_per_device: int | None = None,
) -> nn.Module:
    """Return a module whose batch norms compute their statistics together.

    A collective call of all ranks, before DDP wraps the module. `over="device"` gives what one
    process with the whole batch of its device computes.

    Args:
        module: Changed in place; a layer of batch norm itself is replaced.
        over: The processes of this device, or all ranks.
        processes_per_device: As `attach` takes it.

    Raises:
        RunError: The environment says what cannot be.
        CommunicationError: Ranks of a device are on several hosts.
    """
    colocation = colocation_from(os.environ)
    mine = {
        "device": device_of(dist.group.WORLD, colocation, processes_per_device),
        "host": host_name(),
    }
    members = members_of(dist.group.WORLD, agree(dist.group.WORLD, mine))
    ranks = members.everybody if over == "ranks" else members.ranks
    group = None
    if len(ranks) > 1:
        group = dist.new_group(list(ranks), use_local_synchronization=True)
    return _replaced(module, group)


def _replaced(module: nn.Module, process_group: Any) -> nn.Module:
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
        return SharedBatchNorm(module, process_group)
    for name, child in module.named_children():
        setattr(module, name, _replaced(child, process_group))
    return module
