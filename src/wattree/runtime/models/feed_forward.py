"""The feed-forward part of the built-in decoder's layers, and of its experts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from wattree.capture import TransformerShape
from wattree.runtime.models.linears import Linears, Weights
from wattree.runtime.regions import join_parts, split_parts

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "silu": functional.silu,
}


def out_std(inputs: int, shape: TransformerShape) -> float:
    """Return the spread of weights that write the residual; smaller with more layers (GPT-2)."""
    return float((inputs * 2 * shape.layers) ** -0.5)


class FeedForwardPart(nn.Module):
    """Up, activation, down. Phantom layers read and write shards, so borders surround them.

    Args:
        inner: Features between its layers.
        whole: Every rank has all of it.
    """

    def __init__(
        self,
        shape: TransformerShape,
        linears: Linears,
        name: str,
        *,
        inner: int,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.is_phantom = linears.recipe.kind.has_ghosts
        self.group, self.hidden, self.name = linears.group, shape.hidden, name
        self.activation, self.is_gated = ACTIVATIONS[shape.activation], shape.gated
        outputs = (inner, inner) if shape.gated else (inner,)
        up: Callable[..., nn.Module] = linears.column
        down: Callable[..., nn.Module] = linears.row
        if self.is_phantom or whole:
            up = down = linears.phantom if self.is_phantom else linears.plain
        std, bias = shape.hidden**-0.5, shape.mlp_bias
        weights = Weights(name=f"{name}.up", std=std, bias=bias, parts=outputs)
        self.up = up(shape.hidden, sum(outputs), weights)
        weights = Weights(name=f"{name}.down", std=out_std(inner, shape), bias=bias)
        self.down = down(inner, shape.hidden, weights)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feed-forward part's contribution to the residual."""
        if self.is_phantom:
            x = split_parts(x, self.group, self.name)
        x = self.up(x)
        if self.is_gated:
            gate, value = x.chunk(2, dim=-1)
            x = self.activation(gate) * value
        else:
            x = self.activation(x)
        x = self.down(x)
        return join_parts(x, self.group, self.hidden, self.name) if self.is_phantom else x
