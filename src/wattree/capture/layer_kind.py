"""How one layer of a transformer differs from the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from wattree.capture.shape import TransformerShape

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


#: Fields of layers with attention and a feed-forward part.
_OF_BOTH_BRANCHES: Final = (
    *("window", "window_layers", "no_rope_layers", "moe_layers", "parallel", "encoder_layers"),
)


#: Fields that list layers.
_LISTS: Final = ("window_layers", "no_rope_layers", "moe_layers")
#: Fields that attention to compressed keys and values has no operators for.
_NOT_LATENT: Final = ("no_rope_layers", "qk_norm", "attention_sinks")


def layer_problems(shape: TransformerShape) -> list[str]:
    """Return one line for each thing that is wrong with which layers differ."""
    problems = [
        f"{name}: found layer {beyond[0]}, expected layers from 0 to {shape.layers - 1}"
        for name in _LISTS
        if (beyond := [i for i in getattr(shape, name) or () if not 0 <= i < shape.layers])
    ]
    if shape.kv_lora_rank:
        problems += [
            f"{name}: has no effect with latent attention (kv_lora_rank); leave it out"
            for name in _NOT_LATENT
            if getattr(shape, name) not in (None, (), "none", False)
        ]
    return problems + _pattern_problems(shape)


def _pattern_problems(shape: TransformerShape) -> list[str]:
    """Return one line for each thing that a pattern of layers lacks."""
    if not shape.pattern:
        if shape.predictions and (shape.encoder_layers or shape.head != "language_model"):
            found = f"predictions: found {shape.predictions}, expected 0"
            return [f"{found}: only decoders with logits predict further tokens"]
        return []
    for name in ("pattern", "prediction_pattern"):
        if unknown := sorted(set(getattr(shape, name)) - MIXERS.keys()):
            known = ", ".join(f"{letter} ({branch})" for letter, branch in MIXERS.items())
            return [f"{name}: found '{unknown[0]}', expected letters of {known}"]
    problems = []
    if len(shape.pattern) != shape.layers:
        problems.append(
            f"pattern: found {len(shape.pattern)} letters, expected {shape.layers}, one a layer"
        )
    needed = ("mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state")
    letters = shape.pattern + shape.prediction_pattern * (shape.predictions > 0)
    if "M" in letters and (missing := [name for name in needed if not getattr(shape, name)]):
        problems.append(f"{missing[0]}: found 0, expected the size that layers 'M' of pattern have")
    if shape.mamba_groups and shape.mamba_heads % shape.mamba_groups:
        problems.append(
            f"mamba_groups: found {shape.mamba_groups}, expected a number that divides "
            f"mamba_heads ({shape.mamba_heads})"
        )
    if "E" in letters and not shape.experts:
        problems.append("experts: found 0, expected those that layers 'E' of pattern have")
    problems += [
        f"{name}: has no effect with a pattern: its layers have one branch each; leave it out"
        for name in _OF_BOTH_BRANCHES
        if getattr(shape, name)
    ]
    if shape.predictions and shape.head != "language_model":
        problems.append(f"predictions: a head of kind '{shape.head}' predicts no tokens")
    return problems
