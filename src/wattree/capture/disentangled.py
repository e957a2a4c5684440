"""DeBERTa's attention to relative positions, in addition to that to contents.

P. He et al., "DeBERTa: decoding-enhanced BERT with disentangled attention", ICLR 2021,
arXiv:2006.03654, section 3.1; in the form of v3, which shares the projections of contents.
"""

from __future__ import annotations

from wattree.capture.attention_sizes import AttentionSizes
from wattree.capture.embedding import RELATIVE_TABLE
from wattree.capture.parts import Builder, features
from wattree.capture.shape import TransformerShape
from wattree.graph import DimRole, Operand, Operator, OperatorKind, Parameter


def disentangled_scores(
    build: Builder, sizes: AttentionSizes, *, q: str, kv: str
) -> list[Operator]:
    """Return DeBERTa's content-to-position and position-to-content scores.

    The relative positions go through the layer's own query and key projections (shared weights);
    contents and positions are then multiplied head by head.
    """
    span, of_heads = build.shape.disentangled_positions, ("batch", "seq", "heads", "feature")
    scores = Operator(
        path="attention.position_scores",
        kind=OperatorKind.MATMUL,
        function="disentangled_scores",
        dims=(
            *build.lead,
            features("heads", sizes.heads, units=sizes.kv_heads),
            features("position", 2 * span, role=DimRole.OPAQUE),
            features("feature", sizes.head_dim, role=DimRole.CONTRACTED),
        ),
        # The positions come second: they are the weight-like operand, indexed by `position`.
        inputs=(
            Operand(tensor=q, dims=of_heads),
            Operand(tensor="projected_positions", dims=("position", "heads", "feature")),
            Operand(tensor=kv, dims=of_heads, fraction=sizes.kv_share),
        ),
        outputs=(Operand(tensor="position_scores", dims=("batch", "seq", "position", "heads")),),
        saved=(q, kv, "projected_positions"),
        kernels=2,
    )
    return [*_projected_positions(build.shape, sizes), scores]


def _projected_positions(shape: TransformerShape, sizes: AttentionSizes) -> list[Operator]:
    """Return the relative positions, and their projection to queries and keys."""
    span, width = shape.disentangled_positions, shape.hidden
    positions = features("position", span, role=DimRole.OPAQUE)
    rows = Parameter(
        name="attention.relative_positions.weight",
        dims=("position", "hidden"),
        elements=span * width,
        tied_to=RELATIVE_TABLE,
    )
    table = Operator(
        path="attention.relative_positions",
        kind=OperatorKind.NORM,
        function="layer_norm",
        dims=(positions, features("hidden", width, role=DimRole.OPAQUE)),
        outputs=(Operand(tensor="relative_positions", dims=("position", "hidden")),),
        parameters=(rows,),
    )
    weight = Parameter(
        name="attention.positions.weight",
        dims=("out", "in"),
        elements=2 * sizes.q_width * width,
        tied_to="./attention.qkv.weight",
    )
    projection = Operator(
        path="attention.positions",
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(
            positions,
            features("out", 2 * sizes.q_width, units=sizes.kv_heads),
            features("in", width, role=DimRole.CONTRACTED),
        ),
        inputs=(Operand(tensor="relative_positions", dims=("position", "in")),),
        outputs=(Operand(tensor="projected_positions", dims=("position", "out")),),
        parameters=(weight,),
        saved=("relative_positions",),
    )
    return [table, projection]
