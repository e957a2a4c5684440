"""The built-in `ffn`: linear layers with an activation between them, under every strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional

from wattree.job import Ffn
from wattree.runtime.models.linears import FeatureLayout, Linears, Weights
from wattree.runtime.parallel.cut import StageLayers
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
    """Linear layers on vectors, `(samples, features)`.

    Args:
        layers: Each by its number in the whole stack.
        activation: Between them.
        depth: Of the whole stack; there is no activation behind its last layer.
    """

    def __init__(self, layers: Mapping[int, nn.Module], activation: str, *, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(number): layer for number, layer in layers.items()})
        self.activation, self._last = _ACTIVATIONS[activation], str(depth - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of its last layer."""
        for number, layer in self.layers.items():
            x = layer(x)
            if number != self._last:
                x = self.activation(x)
        return x


def build_ffn(ffn: Ffn, linears: Linears, cuts: Sequence[StageLayers]) -> list[FeedForward]:
    """Return a rank's parts of the stack.

    `tensor` splits every layer by its outputs and gathers its input; `megatron` splits layers by
    outputs and by inputs in turn; `phantom` makes every layer one of its own.
    """
    return [
        FeedForward(
            {number: _layer(ffn, linears, number) for number in range(cut.begin, cut.end)},
            ffn.activation,
            depth=ffn.depth,
        )
        for cut in cuts
    ]


def _layer(ffn: Ffn, linears: Linears, number: int) -> nn.Module:
    rows, columns = ffn.widths[number], ffn.widths[number + 1]
    gain = _GAINS.get(ffn.activation, 1.0) if number < ffn.depth - 1 else 1.0
    weights = Weights(name=f"layers.{number}", std=(gain / rows) ** 0.5, bias=ffn.bias)
    return _maker(linears, number)(rows, columns, weights)


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


def layouts(kind: ReplicaKind, depth: int) -> tuple[FeatureLayout, FeatureLayout]:
    """Return the layouts of a stack's input and output on a rank."""
    if kind is ReplicaKind.DDP:
        return FeatureLayout.WHOLE, FeatureLayout.WHOLE
    if kind is ReplicaKind.MEGATRON:  # a column without its row leaves features where they are
        return FeatureLayout.WHOLE, FeatureLayout.FEATURES if depth % 2 else FeatureLayout.WHOLE
    return FeatureLayout.FEATURES, FeatureLayout.FEATURES
