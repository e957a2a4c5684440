"""The built-in `transformer`: a small decoder, under every strategy.

Attention is split by heads, the feed-forward part by its inner features or into phantom layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.capture import TransformerShape
from wattree.errors import JobError
from wattree.runtime.models.experts import MixtureOfExperts, check_experts
from wattree.runtime.models.feed_forward import ACTIVATIONS, FeedForwardPart, out_std
from wattree.runtime.models.linears import Linears, Weights
from wattree.runtime.models.vocabulary import VocabularyEmbedding
from wattree.runtime.parallel.context import AttentionCore
from wattree.runtime.parallel.cut import StageLayers
from wattree.runtime.regions import split_parts

#: Keys of a transformer block that are run; any other one has to have its default.
_RUN = frozenset(
    {
        *("layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "ffn", "gated"),
        *("activation", "norm", "qkv_bias", "attention_out_bias", "mlp_bias", "head_bias"),
        *("positions", "max_positions", "tied_embedding", "final_norm"),
        *("experts", "top_k", "expert_ffn", "shared_ffn", "moe_layers"),
        *("name", "architecture", "sources"),
    }
)
#: Names of the one table of tied embeddings, in the first part of a decoder and in the last.
TIED = ("embedding.weight", "head.weight")
_POSITIONS = ("rotary", "learned", "none")


def check_shape(shape: TransformerShape, linears: Linears, *, sequence: int, place: str) -> None:
    """Reject what the built-in decoder does not support, and what cannot be split over its ranks.

    Raises:
        JobError: All reasons.
    """
    plain = TransformerShape(**{name: getattr(shape, name) for name in _RUN})
    problems = [
        f"{field.name}: found {getattr(shape, field.name)!r}, expected "
        f"{getattr(plain, field.name)!r}, which is what the built-in decoder runs"
        for field in fields(shape)
        if getattr(shape, field.name) != getattr(plain, field.name)
    ]
    if shape.activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        problems.append(f"activation: found '{shape.activation}', expected one of {known}")
    if shape.positions not in _POSITIONS:
        known = ", ".join(_POSITIONS)
        problems.append(f"positions: found '{shape.positions}', expected one of {known}")
    if shape.positions == "learned" and shape.max_positions < sequence:
        problems.append(
            f"max_positions: found {shape.max_positions}, expected at least {sequence}, "
            "data.sequence_length"
        )
    tp = linears.group.size
    for name, count in (("heads", shape.heads), ("kv_heads", shape.kv_heads or shape.heads)):
        if count % tp:
            problems.append(f"{name}: found {count}, expected a multiple of strategy.tp, {tp}")
    inner = _inner(shape)
    if shape.gated and inner % tp:
        problems.append(f"ffn: found {inner}, expected a multiple of strategy.tp, {tp}")
    problems += check_experts(shape, linears, sequence=sequence)
    if problems:
        raise JobError(place, problems)


class Norm(nn.Module):
    """RMS or layer norm of the last dim; ranks of other positions may share its parameters."""

    def __init__(self, kind: str, width: int, linears: Linears) -> None:
        super().__init__()
        made = {"device": linears.device, "dtype": linears.dtype}
        self.is_rms, self.width = kind == "rms", width
        has_weight, has_bias = kind != "layer_plain", kind == "layer"
        self.weight = nn.Parameter(torch.ones(width, **made)) if has_weight else None
        self.bias = nn.Parameter(torch.zeros(width, **made)) if has_bias else None
        for parameter in self.parameters():
            parameter.is_partial = linears.sequence_parallel

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of each position."""
        if self.is_rms:
            return functional.rms_norm(x, (self.width,), self.weight, 1e-6)
        return functional.layer_norm(x, (self.width,), self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    """Causal attention over this rank's heads: `(batch, sequence, hidden)` to the same."""

    def __init__(self, shape: TransformerShape, linears: Linears, name: str) -> None:
        super().__init__()
        tp = linears.group.size
        self.heads, self.kv_heads = shape.heads // tp, (shape.kv_heads or shape.heads) // tp
        self.head_dim = shape.head_dim or shape.hidden // shape.heads
        self.is_rotary, self.context = shape.positions == "rotary", linears.context
        self.core = AttentionCore(linears.context)
        wide, narrow = shape.heads * self.head_dim, self.kv_heads * tp * self.head_dim
        std = shape.hidden**-0.5
        self.qkv = linears.column(
            shape.hidden,
            wide + 2 * narrow,
            Weights(name=f"{name}.qkv", std=std, bias=shape.qkv_bias, parts=(wide, narrow, narrow)),
        )
        self.out = linears.row(
            wide,
            shape.hidden,
            Weights(name=f"{name}.out", std=out_std(wide, shape), bias=shape.attention_out_bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the attention's contribution to the residual."""
        qkv = self.qkv(x)
        sizes = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for part in qkv.split([size * self.head_dim for size in sizes], dim=-1)
        )
        if self.is_rotary:
            positions = self.context.positions(q.shape[2], x.device)
            q, k = _rotated(q, positions), _rotated(k, positions)
        mixed: Tensor = self.core(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and feed-forward part, each after a norm and added to the residual."""

    def __init__(self, shape: TransformerShape, linears: Linears, number: int) -> None:
        super().__init__()
        name = f"layers.{number}"
        self.attention_norm = Norm(shape.norm, shape.hidden, linears)
        self.attention = Attention(shape, linears, f"{name}.attention")
        self.mlp_norm = Norm(shape.norm, shape.hidden, linears)
        self.mlp: nn.Module
        if shape.experts and (shape.moe_layers is None or number in shape.moe_layers):
            self.mlp = MixtureOfExperts(shape, linears, f"{name}.mlp")
        else:
            self.mlp = FeedForwardPart(shape, linears, f"{name}.mlp", inner=_inner(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual after the layer."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Decoder(nn.Module):
    """Tokens `(batch, sequence)` to logits `(batch, sequence, vocabulary_shard)`.

    Part of one takes and returns what is between its layers, `(batch, sequence_shard, hidden)`.

    Args:
        shape: Of the whole.
    """

    def __init__(self, shape: TransformerShape, linears: Linears, cut: StageLayers) -> None:
        super().__init__()
        group = linears.group
        made = {"device": linears.device, "dtype": linears.dtype}
        self.group, self.is_cut = group, linears.sequence_parallel
        self.context = linears.context
        self.embedding: VocabularyEmbedding | None = None
        self.positions: nn.Parameter | None = None
        if cut.is_first:
            self.embedding = VocabularyEmbedding(shape.vocab, shape.hidden, group=group, **made)
            linears.draw(
                self.embedding.weight,
                "embedding",
                shape.hidden**-0.5,
                rows=linears.shard(shape.vocab),
            )
        if cut.is_first and shape.positions == "learned":
            self.positions = nn.Parameter(torch.empty(shape.max_positions, shape.hidden, **made))
            linears.draw(self.positions, "positions", shape.hidden**-0.5)
        # By their numbers in the whole model, which checkpoints name.
        self.layers = nn.ModuleDict(
            {str(number): Layer(shape, linears, number) for number in range(cut.begin, cut.end)}
        )
        self.norm: nn.Module | None = None
        self.head: nn.Module | None = None
        if cut.is_last:
            self._add_head(shape, linears)

    def _add_head(self, shape: TransformerShape, linears: Linears) -> None:
        self.norm = Norm(shape.norm, shape.hidden, linears) if shape.final_norm else nn.Identity()
        self.head = linears.column(
            shape.hidden,
            shape.vocab,
            Weights(name="head", std=shape.hidden**-0.5, bias=shape.head_bias),
            last=True,
        )
        if not shape.tied_embedding:
            return
        if self.embedding is not None:
            self.head.weight = self.embedding.weight
            return
        # A copy of the table, whose gradients are added to those of the first part's.
        rows = linears.shard(shape.vocab)
        linears.draw(self.head.weight, "embedding", shape.hidden**-0.5, rows=rows)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the next tokens, or the input of the next part."""
        if self.embedding is not None:
            x = self._embedded(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is None or self.head is None:
            return x
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _embedded(self, ids: Tensor) -> Tensor:
        assert self.embedding is not None
        x: Tensor = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions[self.context.positions(ids.shape[1], ids.device)]
        return split_parts(x, self.group, "embedding", dim=1) if self.is_cut else x


def build_decoder(
    shape: TransformerShape,
    linears: Linears,
    cuts: Sequence[StageLayers],
    *,
    sequence: int,
    place: str,
) -> list[Decoder]:
    """Return a rank's parts of a decoder.

    Args:
        shape: Of the whole.
        cuts: Which layers each has.
        sequence: Tokens of a sample.

    Raises:
        JobError: The shape is none that is run, or does not split over the ranks.
    """
    check_shape(shape, linears, sequence=sequence, place=place)
    linears = replace(linears, sequence_parallel=linears.recipe.sequence_parallel)
    return [Decoder(shape, linears, cut) for cut in cuts]


def _inner(shape: TransformerShape) -> int:
    return shape.ffn or 4 * shape.hidden


def _rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Return `(batch, heads, sequence, features)` turned by position (RoFormer, 2021)."""
    half = x.shape[-1] // 2
    rates = torch.exp(
        torch.arange(half, device=x.device, dtype=torch.float32) * (-math.log(10_000.0) / half)
    )
    turns = positions.to(torch.float32)[:, None] * rates
    cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
