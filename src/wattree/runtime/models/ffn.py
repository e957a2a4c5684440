"""The built-in `ffn`: linear layers with an activation between them, under every strategy."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from wattree.job import Ffn
from wattree.runtime.models.linears import FeatureLayout, Linears, Weights
from wattree.runtime.recipe import ReplicaKind

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": Tensor.tanh,
    "sigmoid": Tensor.sigmoid,
}
#: Variance of a layer's weights times its inputs, so that activations keep theirs: half of what
#: goes into a ReLU is lost (He et al., "Delving Deep into Rectifiers", 2015).
_GAINS = {"relu": 2.0}


class FeedForward(nn.Module):
    """A stack of linear layers on vectors, `(samples, features)`.

    Attributes:
        input_layout, output_layout: What a rank is given, and what it returns.
    """

    def __init__(
        self,
        layers: list[nn.Module],
        activation: str,
        *,
        inputs: FeatureLayout,
        outputs: FeatureLayout,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.activation = _ACTIVATIONS[activation]
        self.input_layout, self.output_layout = inputs, outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's output; there is no activation behind it."""
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number < last:
                x = self.activation(x)
        return x


def build_ffn(ffn: Ffn, linears: Linears) -> FeedForward:
    """Return a rank's part of the stack.

    `tensor` splits every layer by its outputs and gathers its input; `megatron` splits layers by
    outputs and by inputs in turn; `phantom` makes every layer one of its own.
    """
    layers = []
    for number in range(ffn.depth):
        rows, columns = ffn.widths[number], ffn.widths[number + 1]
        gain = _GAINS.get(ffn.activation, 1.0) if number < ffn.depth - 1 else 1.0
        make = _maker(linears, number)
        weights = Weights(name=f"layers.{number}", std=(gain / rows) ** 0.5, bias=ffn.bias)
        layers.append(make(rows, columns, weights))
    inputs, outputs = _layouts(linears.recipe.kind, ffn.depth)
    return FeedForward(layers, ffn.activation, inputs=inputs, outputs=outputs)


def _maker(linears: Linears, number: int) -> Callable[..., nn.Module]:
    match linears.recipe.kind:
        case ReplicaKind.DDP:
            return linears.plain
        case ReplicaKind.TENSOR:
            return linears.gathered
        case ReplicaKind.MEGATRON:
            return linears.row if number % 2 else linears.column
        case ReplicaKind.PHANTOM | ReplicaKind.LOW_RANK:
            return linears.phantom


def _layouts(kind: ReplicaKind, depth: int) -> tuple[FeatureLayout, FeatureLayout]:
    if kind is ReplicaKind.DDP:
        return FeatureLayout.WHOLE, FeatureLayout.WHOLE
    if kind is ReplicaKind.MEGATRON:  # a column without its row leaves features where they are
        return FeatureLayout.WHOLE, FeatureLayout.FEATURES if depth % 2 else FeatureLayout.WHOLE
    return FeatureLayout.FEATURES, FeatureLayout.FEATURES
