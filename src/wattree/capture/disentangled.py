"""DeBERTa's attention to relative positions, in addition to that to contents.

P. He et al., "DeBERTa: decoding-enhanced BERT with disentangled attention", ICLR 2021,
arXiv:2006.03654, section 3.1; in the form of v3, which shares the projections of contents.
"""

from __future__ import annotations

from wattree.capture.attention_sizes import AttentionSizes
from wattree.capture.embedding import RELATIVE_TABLE
from wattree.capture.parts import BATCH, features
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    DimRole,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)


def disentangled_scores(
    shape: TransformerShape, sizes: AttentionSizes, *, q: str, kv: str, seq: IterationDim
) -> list[Operator]:
    """Return DeBERTa's content-to-position and position-to-content scores.

    The relative positions go through the layer's own query and key projections (shared weights);
    contents and positions are then multiplied head by head.
    """
    span = shape.disentangled_positions
    scores = Operator(
        path="attention.position_scores",
        kind=OperatorKind.MATMUL,
        function="disentangled_scores",
        dims=(
            BATCH,
            seq,
            features("heads", sizes.heads, units=sizes.kv_heads),
            features("position", 2 * span, role=DimRole.OPAQUE),
            features("feature", sizes.head_dim, role=DimRole.CONTRACTED),
        ),
        # The positions come second: they are the weight-like operand, indexed by `position`.
        inputs=(
            Operand(tensor=q, dims=("batch", "seq", "heads", "feature")),
            Operand(tensor="projected_positions", dims=("position", "heads", "feature")),
            Operand(tensor=kv, dims=("batch", "seq", "heads", "feature"), fraction=sizes.kv_share),
        ),
        outputs=(Operand(tensor="position_scores", dims=("batch", "seq", "position", "heads")),),
        saved=(q, kv, "projected_positions"),
        kernels=2,
    )
    return [*_projected_positions(shape, sizes), scores]


def _projected_positions(shape: TransformerShape, sizes: AttentionSizes) -> list[Operator]:
    """Return the relative positions, and their projection to queries and keys."""
    span, width = shape.disentangled_positions, shape.hidden
    positions = features("position", span, role=DimRole.OPAQUE)
    table = Operator(
        path="attention.relative_positions",
        kind=OperatorKind.NORM,
        function="layer_norm",
        dims=(positions, features("hidden", width, role=DimRole.OPAQUE)),
        outputs=(Operand(tensor="relative_positions", dims=("position", "hidden")),),
        parameters=(
            Parameter(
                name="attention.relative_positions.weight",
                dims=("position", "hidden"),
                elements=span * width,
                tied_to=RELATIVE_TABLE,
            ),
        ),
    )
    projection = Operator(
        path="attention.positions",
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(
            positions,
            features("out", 2 * sizes.q_width, units=sizes.kv_heads),
            features("in", shape.hidden, role=DimRole.CONTRACTED),
        ),
        inputs=(Operand(tensor="relative_positions", dims=("position", "in")),),
        outputs=(Operand(tensor="projected_positions", dims=("position", "out")),),
        parameters=(
            Parameter(
                name="attention.positions.weight",
                dims=("out", "in"),
                elements=2 * sizes.q_width * shape.hidden,
                tied_to="layer/attention.qkv.weight",
            ),
        ),
        saved=("relative_positions",),
    )
    return [table, projection]
