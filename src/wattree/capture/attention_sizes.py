"""Heads of one attention operator, their widths, and shares of the fused tensors."""

from __future__ import annotations

from dataclasses import dataclass

from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import features
from wattree.capture.shape import TransformerShape
from wattree.graph import IterationDim


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Heads and their widths, as one attention operator needs them."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int

    @property
    def q_width(self) -> int:
        """Features of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of all keys and values."""
        return self.kv_heads * (self.head_dim + self.v_head_dim)

    @property
    def k_share(self) -> float:
        """Key features over query features."""
        return self.kv_heads / self.heads

    @property
    def kv_share(self) -> float:
        """Key and value features over query features."""
        return self.kv_width / self.q_width

    @property
    def context_share(self) -> float:
        """Features of the weighted values over query features."""
        return self.v_head_dim / self.head_dim

    @property
    def dim(self) -> IterationDim:
        """The dim over the features of all query heads."""
        return features("heads", self.q_width, units=self.kv_heads)


def sizes_of(shape: TransformerShape, kind: LayerKind) -> AttentionSizes:
    """Return the heads of one layer."""
    if kind.side == "encoder" and shape.encoder_heads != shape.heads:
        heads, head_dim = shape.encoder_heads, shape.hidden // shape.encoder_heads
        return AttentionSizes(heads, heads, head_dim, head_dim)
    return AttentionSizes(shape.heads, shape.kv_heads, shape.head_dim, shape.v_head_dim)
