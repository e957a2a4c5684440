"""Tensor parallelism by rows: activations are gathered, their gradients reduce-scattered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.runtime.layers.casting import autocasted
from wattree.runtime.layers.initialise import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.sharded import ShardedLinear

__all__ = ["GatherRowsLinear"]


class GatherRowsLinear(ShardedLinear):
    """Rows of a dense layer on each rank; input `(…, in_shard)`, output `(…, out_shard)`.

    Forward all-gathers the input and backward reduce-scatters its gradient: (p-1) m B elements
    sent per rank in each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        bias: Whether to add one.
        overlap: Whether communication goes on during local products.
        device: Of the parameters.
        dtype: Of the parameters.
        name: What messages call the layer.

    Attributes:
        weight: Own rows `(out_shard, in_features)`.
        bias: `(out_shard,)`, or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Any = None,
        bias: bool = True,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(in_features, out_features, group=group, overlap=overlap, name=name)
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self.out_shard, in_features, **made))
        self.bias = nn.Parameter(torch.empty(self.out_shard, **made)) if bias else None
        self.reset_parameters()

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial values of variance `gain / in_features`."""
        if self.weight.is_meta:
            return
        is_alone = self.group.size == 1
        stream = None if is_alone else rank_generator(self.group.rank, self.weight.device)
        uniform_(self.weight, gain / self.in_features, stream)
        if self.bias is not None:
            uniform_(self.bias, LINEAR_GAIN / self.in_features, stream)

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)` of `(…, in_shard)`."""
        if self.group.size == 1:
            return functional.linear(x, self.weight, self.bias)
        self.check_input(x, self.in_shard)
        self.agreed(x)
        x, weight, bias = autocasted(x, self.weight, self.bias)
        z = _GatherRows.apply(self, x.reshape(-1, x.shape[-1]), weight, bias)
        return z.view(*x.shape[:-1], self.out_shard)

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        return self.group.all_gather(self.weight.detach(), self.out_widths, self.name).wait()


class _GatherRows(torch.autograd.Function):
    """Features first, `(n, B)`, in what is sent: gathering stacks shards without a copy."""

    @staticmethod
    def forward(
        ctx: Any, layer: GatherRowsLinear, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        rank, offsets = layer.group.rank, layer.in_offsets
        pending = layer.group.all_gather(x.t().contiguous(), layer.in_widths, layer.name)
        if not layer.overlap:
            whole = pending.wait()
            z = torch.mm(whole.t(), weight.t())
        else:
            # The product with the own columns runs while the others are on their way.
            z = torch.mm(x, weight[:, offsets[rank] : offsets[rank + 1]].t())
            whole = pending.wait()
            for part in (slice(0, offsets[rank]), slice(offsets[rank + 1], None)):
                if whole[part].shape[0]:
                    z.addmm_(whole[part].t(), weight[:, part].t())
        if bias is not None:
            z += bias
        ctx.layer = layer
        ctx.save_for_backward(whole, weight)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        layer: GatherRowsLinear = ctx.layer
        whole, weight = ctx.saved_tensors
        _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        pending = None
        if needs_x:
            partial = torch.mm(weight.t(), delta.t())
            pending = layer.group.reduce_scatter(partial, layer.in_widths, layer.name)
            if not layer.overlap:
                pending.finish_now()
        d_weight = torch.mm(delta.t(), whole.t()) if needs_weight else None
        d_bias = delta.sum(0) if needs_bias else None
        d_x = pending.wait().t() if pending else None
        return None, d_x, d_weight, d_bias
