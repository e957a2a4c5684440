"""Replacements of dense layers in models that are unaware of shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.convert.inputs import InputBorder, SharedColumnLinear
from wattree.runtime.convert.plan import CutKind, Side
from wattree.runtime.group import Group
from wattree.runtime.layers import (
    ColumnParallelLinear,
    GatherRowsLinear,
    PhantomLinear,
    RowParallelLinear,
    ShardedLinear,
)
from wattree.runtime.regions import join_parts, split_parts


class BorderedPhantomLinear(PhantomLinear):
    """A phantom layer with a replicated input or output.

    Args:
        whole_input: Each rank takes its shard of the input `(…, in_features)`; its gradient is
            gathered.
        whole_output: The output is gathered to `(…, out_features)`; each rank takes its part of
            the gradient.
        border: Of the whole input, if others read it, too.
        others: As of `PhantomLinear`.
    """

    def __init__(
        self,
        *args: Any,
        whole_input: bool,
        whole_output: bool,
        border: InputBorder | None = None,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)
        self._border = border or InputBorder()
        self.whole_input, self.whole_output = whole_input, whole_output

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)`, or `(…, out_features)` if whole."""
        if self.group.size == 1:
            return super().forward(x)
        if self.whole_input:
            x = self._border.cross(lambda x: split_parts(x, self.group, self.name), x)
        x = super().forward(x)
        if not self.whole_output:
            return x
        return join_parts(x, self.group, self.out_features, self.name)


def built(
    cut: LayerCut,
    like: nn.Module,
    group: Group,
    operator_kwargs: Mapping[str, Any],
    border: InputBorder | None = None,
) -> ShardedLinear:
    """Return a rank's layer, with initial values of its own.

    Args:
        like: The dense layer: its device, type, mode and whether it is trained are taken over.
        operator_kwargs: Options of phantom layers (`regather`, `overlap`).
        border: Of its input, if other layers read that, too.
    """
    weight = like.weight
    every: dict[str, Any] = {
        "group": group,
        "bias": cut.bias,
        "device": weight.device,
        "dtype": weight.dtype,
        "name": cut.name,
    }
    if "overlap" in operator_kwargs:
        every["overlap"] = operator_kwargs["overlap"]
    widths = (cut.in_features, cut.out_features)
    layer: ShardedLinear
    if cut.kind is CutKind.PHANTOM:
        every |= {"ghosts": cut.ghosts, "variant": cut.variant} | dict(operator_kwargs)
        whole = {
            "whole_input": cut.input is Side.WHOLE,
            "whole_output": cut.output is Side.WHOLE,
        }
        bordered = any(whole.values())
        layer = (
            BorderedPhantomLinear(*widths, **whole, border=border, **every)
            if bordered
            else PhantomLinear(*widths, **every)
        )
    elif border is not None:
        layer = SharedColumnLinear(*widths, border=border, **every)
    else:
        kinds: dict[CutKind, Any] = {
            CutKind.COLUMN: ColumnParallelLinear,
            CutKind.ROW: RowParallelLinear,
            CutKind.ROWS: GatherRowsLinear,
        }
        layer = kinds[cut.kind](*widths, **every)
    layer.train(like.training)
    for name, parameter in layer.named_parameters():
        model = getattr(like, "bias" if name == "bias" else "weight")
        parameter.requires_grad_(model.requires_grad)
    return layer
