"""Self-attention, cross-attention and the operators between their projections.

The loop nest of `attention.core` is `(batch, seq, kv_seq, heads)`: query positions, key positions
(contracted) and the features of all query heads. Heads and their features are one dim, `heads`,
of `heads * head_dim` features in `kv_heads` indivisible units, so that activations stay
three-dimensional, `(batch, seq, features)`. Keys and values are one tensor, `kv`; seen through
`heads` it holds `kv_heads (head_dim + v_head_dim) / (heads head_dim)` of the indexed extent (2 for
multi-head attention). Sizes of heads are in the operator's own fields.
"""

from __future__ import annotations

from dataclasses import replace

from wattree.capture.attention_sizes import AttentionSizes, sizes_of
from wattree.capture.disentangled import disentangled_scores
from wattree.capture.layer_kind import LayerKind
from wattree.capture.parts import BATCH, Output, elementwise, features, linear, sequence_dim
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


def self_attention(
    shape: TransformerShape, kind: LayerKind, *, reads: str, writes: str, seq: IterationDim
) -> list[Operator]:
    """Return the operators from the layer's (normalized) input to the output projection."""
    sizes = sizes_of(shape, kind)
    q_features = sizes.q_width
    kv_features = sizes.kv_heads * (sizes.head_dim + sizes.v_head_dim)
    total = q_features + kv_features
    operators = [
        linear(
            "attention.qkv",
            reads=reads,
            writes=[
                Output(tensor="q", share=q_features / total),
                Output(tensor="kv", share=kv_features / total),
            ],
            in_features=shape.hidden,
            out_features=total,
            out_units=sizes.kv_heads,
            bias=shape.qkv_bias,
            seq=seq,
            layers=1 if shape.joint_projections else 3,
        )
    ]
    q, kv = "q", "kv"
    if shape.qk_norm != "none" and (kind.rotary or shape.qk_norm != "plain"):
        operators += _qk_norms(shape, sizes, seq=seq)
        q, kv = "q_normed", "kv_normed"
    if shape.positions == "rotary" and kind.rotary:
        function = f"rotary{'_scaled' * shape.scaled_rotary}"
        function += "_concatenated" * shape.concatenated_rotary
        operators.append(_rotary(sizes, function, q=q, kv=kv, seq=seq))
        q, kv = "q_rotated", "kv_rotated"
    scores: tuple[str, ...] = ()
    if shape.disentangled_positions:
        operators += disentangled_scores(shape, sizes, q=q, kv=kv, seq=seq)
        scores = ("position_scores",)
    operators.append(
        attention_core(
            "attention.core",
            sizes,
            q=q,
            kv=kv,
            mask=AttentionMask(causal=shape.causal and kind.side != "encoder", window=kind.window),
            parameters=_core_parameters(shape, kind, sizes),
            scores=scores,
            seq=seq,
            kv_ratio=seq.extent.coefficient,
        )
    )
    operators.append(_output_projection(shape, sizes, "attention", writes=writes, seq=seq))
    return operators


def cross_attention(
    shape: TransformerShape, *, reads: str, memory: str, writes: str, seq: IterationDim
) -> list[Operator]:
    """Return the operators of a decoder layer's attention to the encoder's output."""
    sizes = sizes_of(shape, LayerKind(side="decoder"))
    kv_features = sizes.kv_heads * (sizes.head_dim + sizes.v_head_dim)
    return [
        linear(
            "cross_attention.q",
            reads=reads,
            writes="cross_q",
            in_features=shape.hidden,
            out_features=sizes.q_width,
            out_units=sizes.kv_heads,
            bias=shape.qkv_bias,
            seq=seq,
        ),
        linear(
            "cross_attention.kv",
            reads=memory,
            writes="cross_kv",
            in_features=shape.hidden,
            out_features=kv_features,
            out_units=sizes.kv_heads,
            bias=shape.qkv_bias,
            seq=sequence_dim(),
            layers=2,
        ),
        attention_core(
            "cross_attention.core",
            sizes,
            q="cross_q",
            kv="cross_kv",
            mask=AttentionMask(causal=False),
            seq=seq,
            kv_ratio=1.0,
        ),
        _output_projection(shape, sizes, "cross_attention", writes=writes, seq=seq),
    ]


def attention_core(
    path: str,
    sizes: AttentionSizes,
    *,
    q: str,
    kv: str,
    mask: AttentionMask,
    seq: IterationDim,
    kv_ratio: float,
    parameters: tuple[Parameter, ...] = (),
    scores: tuple[str, ...] = (),
) -> Operator:
    """Return scores, softmax and weighted values as one fused operator."""
    context = f"{path}.context"
    return Operator(
        path=path,
        kind=OperatorKind.ATTENTION,
        function="scaled_dot_product_attention",
        dims=(
            BATCH,
            seq,
            IterationDim(
                name="kv_seq",
                extent=sequence_dim(kv_ratio).extent,
                role=DimRole.CONTRACTED,
            ),
            sizes.dim,
        ),
        inputs=(
            Operand(tensor=q, dims=("batch", "seq", "heads")),
            Operand(tensor=kv, dims=("batch", "kv_seq", "heads"), fraction=sizes.kv_share),
            *(
                Operand(
                    tensor=name,
                    dims=("batch", "seq", "kv_seq", "heads"),
                    fraction=1 / sizes.head_dim,
                )
                for name in scores
            ),
        ),
        outputs=(
            Operand(tensor=context, dims=("batch", "seq", "heads"), fraction=sizes.context_share),
        ),
        parameters=parameters,
        saved=(q, kv, *scores, context),
        mask=mask,
        query_heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        value_head_dim=sizes.v_head_dim,
    )


def _output_projection(
    shape: TransformerShape, sizes: AttentionSizes, part: str, *, writes: str, seq: IterationDim
) -> Operator:
    return linear(
        f"{part}.out",
        reads=f"{part}.core.context",
        writes=writes,
        in_features=sizes.heads * sizes.v_head_dim,
        out_features=shape.hidden,
        in_units=sizes.heads,
        bias=shape.attention_out_bias,
        seq=seq,
    )


def _rotary(
    sizes: AttentionSizes, function: str, *, q: str, kv: str, seq: IterationDim
) -> Operator:
    """Return the rotation of queries and keys. Values pass through inside `kv` unread."""
    base = elementwise(
        "attention.rotary",
        function,
        reads=[
            Operand(tensor=q, dims=("batch", "seq", "heads")),
            Operand(tensor=kv, dims=("batch", "seq", "heads"), fraction=sizes.k_share),
        ],
        writes="q_rotated",
        width=sizes.q_width,
        last="heads",
        units=sizes.kv_heads,
        seq=seq,
        kernels=_ROTARY_KERNELS,
    )
    return _with_second_output(base, "kv_rotated", sizes.kv_share)


def _with_second_output(operator: Operator, tensor: str, share: float) -> Operator:
    last = operator.dims[-1].name
    second = Operand(tensor=tensor, dims=("batch", "seq", last), fraction=share)
    return replace(operator, outputs=(*operator.outputs, second))


def _qk_norms(
    shape: TransformerShape, sizes: AttentionSizes, *, seq: IterationDim
) -> list[Operator]:
    """Return the norms of queries and keys, over each head or over all heads together."""
    shared = shape.qk_norm == "head"
    k_width = sizes.kv_heads * sizes.head_dim
    return [
        _head_norm(
            "attention.q_norm",
            shape,
            sizes,
            reads="q",
            writes="q_normed",
            seq=seq,
            elements=sizes.head_dim if shared else sizes.q_width,
            share_in=1.0,
            share_out=1.0,
        ),
        _head_norm(
            "attention.k_norm",
            shape,
            sizes,
            reads="kv",
            writes="kv_normed",
            seq=seq,
            elements=sizes.head_dim if shared else k_width,
            share_in=sizes.k_share,
            share_out=sizes.kv_share,
        ),
    ]


def _head_norm(
    path: str,
    shape: TransformerShape,
    sizes: AttentionSizes,
    *,
    reads: str,
    writes: str,
    seq: IterationDim,
    elements: int,
    share_in: float,
    share_out: float,
) -> Operator:
    role = DimRole.OPAQUE if shape.qk_norm == "width" else DimRole.SPLITTABLE
    dims = ("batch", "seq", "heads")
    values = ("weight", "bias") if shape.qk_norm_bias else ("weight",)
    return Operator(
        path=path,
        kind=OperatorKind.NORM,
        function=shape.norm_function,
        dims=(BATCH, seq, features("heads", sizes.q_width, role=role, units=sizes.kv_heads)),
        inputs=(Operand(tensor=reads, dims=dims, fraction=share_in),),
        outputs=(Operand(tensor=writes, dims=dims, fraction=share_out),),
        parameters=tuple(
            Parameter(
                name=f"{path}.{value}",
                dims=() if shape.qk_norm == "head" else ("heads",),
                elements=elements,
            )
            for value in (() if shape.qk_norm == "plain" else values)
        ),
        saved=(reads,),
        kernels=6 if shape.norm == "rms" else 1,
    )


def _core_parameters(
    shape: TransformerShape, kind: LayerKind, sizes: AttentionSizes
) -> tuple[Parameter, ...]:
    parameters = []
    if shape.attention_sinks:
        parameters.append(
            Parameter(name="attention.core.sinks", dims=("heads",), elements=sizes.heads)
        )
    if kind.relative_bias:
        parameters.append(
            Parameter(
                name="attention.core.relative_bias",
                dims=("heads",),
                elements=shape.relative_buckets * sizes.heads,
            )
        )
    return tuple(parameters)
