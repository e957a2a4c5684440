"""How one layer of a transformer differs from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Letter of a layer in a pattern → its one branch (Megatron-LM's `hybrid_layer_pattern`).
MIXERS: Final = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Properties in which one layer of a model differs from the others.

    Attributes:
        side: `""` for a single stack, else `encoder` or `decoder`.
        moe: Its feed-forward part is a mixture of experts.
        window: Sliding window in tokens, None for full attention.
        rotary: Its queries and keys are rotated, if those of the model are.
        input_norm: It normalizes its input (ModernBERT's first layer does not).
        relative_bias: It owns the table of relative position biases (first layer of T5 stacks).
        mixer: Its one branch, of `MIXERS`; `""`: attention and a feed-forward part.
    """

    side: str = ""
    moe: bool = False
    window: int | None = None
    rotary: bool = True
    input_norm: bool = True
    relative_bias: bool = False
    mixer: str = ""

    @property
    def block(self) -> str:
        """Name of the block such layers share: `layer`, `window_moe_layer`, `encoder_layer`, …."""
        words = [
            "first" if self.relative_bias or not self.input_norm else "",
            "window" if self.window is not None else "",
            "" if self.rotary else "no_rope",
            self.mixer or ("moe" if self.moe else ""),
            self.side,
            "layer",
        ]
        return "_".join(word for word in words if word)
