"""The built-in `ffn`: the shape of a stack of linear layers, as a job's `model` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CROSS_ENTROPY: Final = "cross_entropy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ffn:
    """A stack of `depth` linear layers, an activation after each but the last, and a loss.

    Attributes:
        width: Neurons of every hidden layer.
        inputs: Values of a sample, which the first layer reads.
        outputs: Values, or classes, that the last layer makes.
        activation: `relu`, `gelu`, `silu`, `tanh` or `sigmoid`, as `torch.nn.functional` has them.
        bias: Whether layers add a bias.
        loss: `mse`, the mean over samples and outputs, or `cross_entropy` over the outputs.
    """

    width: int
    depth: int
    inputs: int
    outputs: int
    activation: str = "relu"
    bias: bool = True
    loss: str = "mse"

    @property
    def widths(self) -> tuple[int, ...]:
        """Features ahead of the first layer, and behind each, `depth + 1` numbers."""
        return (self.inputs, *(self.width for _ in range(self.depth - 1)), self.outputs)
