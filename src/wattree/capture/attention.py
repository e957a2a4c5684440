"""Self-attention, cross-attention and the operators between their projections.

The loop nest of `attention.core` is `(batch, seq, kv_seq, heads)`: query positions, key positions
(contracted) and the features of all query heads. Heads and their features are one dim, `heads`,
of `heads * head_dim` features in `kv_heads` indivisible units, so that activations stay
three-dimensional, `(batch, seq, features)`. Keys and values are one tensor, `kv`; seen through
`heads` it holds `kv_heads (head_dim + v_head_dim) / (heads head_dim)` of the indexed extent (2 for
multi-head attention). Sizes of heads are in the operator's own fields.
"""

from __future__ import annotations

from wattree.capture.attention_sizes import AttentionSizes, sizes_of
from wattree.capture.disentangled import disentangled_scores
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import Builder, features, sequence_dim
from wattree.capture.shape import TransformerShape
from wattree.graph import (
    AttentionMask,
    DimRole,
    IterationDim,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
)

#: Launches of a rotary embedding on queries and keys: two products, negate, concatenate and add
#: for each of the two.
_ROTARY_KERNELS = 10
_HEADS = ("batch", "seq", "heads")


def self_attention(build: Builder, kind: LayerKind, *, reads: str) -> list[Operator]:
    """Return the operators from the layer's (normalized) input to the output projection."""
    shape, sizes = build.shape, sizes_of(build.shape, kind)
    operators = [
        build.linear(
            "attention.qkv",
            reads,
            shape.hidden,
            {"q": sizes.q_width, "kv": sizes.kv_width},
            out_units=sizes.kv_heads,
            bias=shape.qkv_bias,
            layers=1 if shape.joint_projections else 3,
        )
    ]
    q, kv = "q", "kv"
    if shape.qk_norm != "none" and (kind.rotary or shape.qk_norm != "plain"):
        operators += [_head_norm(build, sizes, "q"), _head_norm(build, sizes, "k")]
        q, kv = "q_normed", "kv_normed"
    if shape.positions == "rotary" and kind.rotary:
        operators.append(_rotary(build, sizes, q=q, kv=kv))
        q, kv = "q_rotated", "kv_rotated"
    scores: tuple[str, ...] = ()
    if shape.disentangled_positions:
        operators += disentangled_scores(build, sizes, q=q, kv=kv)
        scores = ("position_scores",)
    core = attention_core(
        build,
        "attention.core",
        sizes,
        q=q,
        kv=kv,
        mask=AttentionMask(causal=shape.causal and kind.side != "encoder", window=kind.window),
        parameters=_core_parameters(shape, kind, sizes),
        scores=scores,
        kv_ratio=build.seq.extent.coefficient,
    )
    return [*operators, core, output_projection(build, sizes, "attention")]


def cross_attention(build: Builder, *, reads: str, memory: str) -> list[Operator]:
    """Return the operators of a decoder layer's attention to the encoder's output."""
    shape = build.shape
    sizes = sizes_of(shape, LayerKind(side="decoder"))
    width, bias, units = shape.hidden, shape.qkv_bias, sizes.kv_heads
    part, q, kv = "cross_attention", {"cross_q": sizes.q_width}, {"cross_kv": sizes.kv_width}
    encoder = Builder(shape)
    return [
        build.linear(f"{part}.q", reads, width, q, bias=bias, out_units=units),
        encoder.linear(f"{part}.kv", memory, width, kv, bias=bias, out_units=units, layers=2),
        attention_core(
            build,
            f"{part}.core",
            sizes,
            q="cross_q",
            kv="cross_kv",
            mask=AttentionMask(causal=False),
            kv_ratio=1.0,
        ),
        output_projection(build, sizes, part),
    ]


def attention_core(
    build: Builder,
    path: str,
    sizes: AttentionSizes,
    *,
    q: str,
    kv: str,
    mask: AttentionMask,
    kv_ratio: float,
    parameters: tuple[Parameter, ...] = (),
    scores: tuple[str, ...] = (),
) -> Operator:
    """Return scores, softmax and weighted values as one fused operator."""
    context, all_pairs = f"{path}.context", ("batch", "seq", "kv_seq", "heads")
    kv_seq = IterationDim(
        name="kv_seq", extent=sequence_dim(kv_ratio).extent, role=DimRole.CONTRACTED
    )
    return Operator(
        path=path,
        kind=OperatorKind.ATTENTION,
        function="scaled_dot_product_attention",
        dims=(*build.lead, kv_seq, sizes.dim),
        inputs=(
            Operand(tensor=q, dims=_HEADS),
            Operand(tensor=kv, dims=("batch", "kv_seq", "heads"), fraction=sizes.kv_share),
            *(Operand(tensor=s, dims=all_pairs, fraction=1 / sizes.head_dim) for s in scores),
        ),
        outputs=(Operand(tensor=context, dims=_HEADS, fraction=sizes.context_share),),
        parameters=parameters,
        saved=(q, kv, *scores, context),
        mask=mask,
        query_heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        value_head_dim=sizes.v_head_dim,
    )


def output_projection(build: Builder, sizes: AttentionSizes, part: str) -> Operator:
    """Return the projection of an attention's weighted values."""
    return build.linear(
        f"{part}.out",
        f"{part}.core.context",
        sizes.heads * sizes.v_head_dim,
        build.shape.hidden,
        in_units=sizes.heads,
        bias=build.shape.attention_out_bias,
    )


def _rotary(build: Builder, sizes: AttentionSizes, *, q: str, kv: str) -> Operator:
    """Return the rotation of queries and keys. Values pass through inside `kv` unread."""
    shape = build.shape
    function = f"rotary{'_wide' * shape.wide_rotary}{'_scaled' * shape.scaled_rotary}"
    return Operator(
        path="attention.rotary",
        kind=OperatorKind.ELEMENTWISE,
        function=function + "_concatenated" * shape.concatenated_rotary,
        dims=(*build.lead, sizes.dim),
        inputs=(
            Operand(tensor=q, dims=_HEADS),
            Operand(tensor=kv, dims=_HEADS, fraction=sizes.k_share),
        ),
        outputs=(
            Operand(tensor="q_rotated", dims=_HEADS),
            Operand(tensor="kv_rotated", dims=_HEADS, fraction=sizes.kv_share),
        ),
        kernels=_ROTARY_KERNELS,
    )


def _head_norm(build: Builder, sizes: AttentionSizes, which: str) -> Operator:
    """Return the norm of queries (`q`) or keys (`k`), over each head or all heads together."""
    shape, path = build.shape, f"attention.{which}_norm"
    role = DimRole.OPAQUE if shape.qk_norm == "width" else DimRole.SPLITTABLE
    values = ("weight", "bias") if shape.qk_norm_bias else ("weight",)
    reads, heads, *shares = {
        "q": ("q", sizes.heads, 1.0, 1.0),
        "k": ("kv", sizes.kv_heads, sizes.k_share, sizes.kv_share),
    }[which]
    shared = shape.qk_norm == "head"
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function=shape.norm_function,
        dims=(*build.lead, features("heads", sizes.q_width, role=role, units=sizes.kv_heads)),
        inputs=(Operand(tensor=reads, dims=_HEADS, fraction=shares[0]),),
        outputs=(Operand(tensor=f"{reads}_normed", dims=_HEADS, fraction=shares[1]),),
        parameters=tuple(
            Parameter(
                name=f"{path}.{value}",
                dims=() if shared else ("heads",),
                elements=sizes.head_dim * (1 if shared else heads),
            )
            for value in (() if shape.qk_norm == "plain" else values)
        ),
        saved=(reads,),
        kernels=6 if shape.norm == "rms" else 1,
    )


def _core_parameters(
    shape: TransformerShape, kind: LayerKind, sizes: AttentionSizes
) -> tuple[Parameter, ...]:
    sinks = sizes.heads if shape.attention_sinks else 0
    biases = shape.relative_buckets * sizes.heads if kind.relative_bias else 0
    return tuple(
        Parameter(name=f"attention.core.{name}", dims=("heads",), elements=elements)
        for name, elements in (("sinks", sinks), ("relative_bias", biases))
        if elements
    )
