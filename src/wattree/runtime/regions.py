"""Borders between tensors that every rank has whole and tensors of which each has a part.

Compiled graphs break here, as at layers over several ranks, and second derivatives are rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from wattree.runtime.group import Group
from wattree.runtime.shards import shard_slices, shard_widths


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharded by PyTorch or not, without a copy."""
    to_local = getattr(tensor, "to_local", None)
    part: Tensor = tensor if to_local is None else to_local()
    return part


def own_part(x: Tensor, group: Group, dim: int = -1) -> Tensor:
    """Return this rank's part of a dim, as a view; its gradient is not exchanged."""
    own = shard_slices(shard_widths(x.shape[dim], group.size))[group.rank]
    return x.narrow(dim, own.start, own.stop - own.start)


@_disable_dynamo
def crossed(
    x: Tensor, forward: Callable[[Tensor], Tensor], backward: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return `forward(x)`, whose gradient reaches `x` through `backward`.

    Args:
        forward: Runs without autograd; what it returns is not its argument itself.
        backward: Gradient of what `forward` returned → gradient of `x`.
    """
    found: Tensor = _Crossed.apply(x, forward, backward)
    return found


class _Crossed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Any, backward: Any) -> Tensor:
        ctx.reverse = backward
        found: Tensor = forward(x)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.reverse(gradient), None, None


def split_parts(x: Tensor, group: Group, name: str, dim: int = -1) -> Tensor:
    """Return this rank's part of a replicated tensor; its gradient is gathered.

    Args:
        x: Equal on all ranks, `(…, n, …)`.
        name: What messages call the place.

    Returns:
        `(…, part, …)`.
    """
    if group.size == 1:
        return x
    length = x.shape[dim]
    return crossed(
        x,
        lambda whole: own_part(whole, group, dim).contiguous(),
        lambda part: gathered_parts(part, group, length, name, dim),
    )


def join_parts(x: Tensor, group: Group, length: int, name: str, dim: int = -1) -> Tensor:
    """Return the whole of a tensor split over ranks; each takes its part of the gradient.

    What follows must be the same on all ranks, as losses of whole outputs are.

    Args:
        x: `(…, part, …)`.
        length: Of the whole dim.
        name: What messages call the place.

    Returns:
        `(…, length, …)`.
    """
    if group.size == 1:
        return x
    return crossed(
        x,
        lambda part: gathered_parts(part, group, length, name, dim),
        lambda whole: own_part(whole, group, dim).contiguous(),
    )


def copy_parts(x: Tensor, group: Group, name: str) -> Tensor:
    """Return a tensor that every rank has; gradients, of which each has a part, are added up."""
    return x if group.size == 1 else crossed(x, _same, lambda part: _summed(part, group, name))


def sum_parts(x: Tensor, group: Group, name: str) -> Tensor:
    """Return the sum of a tensor over ranks; each rank already has its whole gradient."""
    return x if group.size == 1 else crossed(x, lambda part: _summed(part, group, name), _same)


def gathered_parts(x: Tensor, group: Group, length: int, name: str, dim: int = -1) -> Tensor:
    """Return the whole of a tensor split over ranks, without a gradient; as of `join_parts`."""
    # Parts differ in their first dim where they are gathered.
    part = x.movedim(dim, 0).contiguous()
    whole = group.all_gather(part, shard_widths(length, group.size), name).wait()
    return whole.movedim(0, dim).contiguous()


def _summed(part: Tensor, group: Group, name: str) -> Tensor:
    own = part.clone(memory_format=torch.contiguous_format)
    return group.all_reduce(own, name).wait()


def _same(x: Tensor) -> Tensor:
    return x.view_as(x)
