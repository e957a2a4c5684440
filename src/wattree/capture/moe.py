"""Mixture-of-experts feed-forward part: router, dispatch, experts, combine, shared experts.

Routed tensors are `(expert, batch, seq, hidden)`: expert by expert, the tokens sent to it, their
positions keeping the names `batch` and `seq`. With balanced routing an expert sees
`top_k / experts` of the positions. In `dispatch` and `combine` the loop runs over all positions
and the routed operand holds that share of it; in the experts the loop itself is that much shorter.
"""

from __future__ import annotations

from wattree.capture.mlp import feed_forward
from wattree.capture.parts import (
    BATCH,
    HIDDEN_DIMS,
    ExpertGroup,
    elementwise,
    features,
    linear,
)
from wattree.capture.shape import TransformerShape
from wattree.graph import DimRole, IterationDim, Operand, Operator, OperatorKind

_ROUTED_DIMS = ("expert", "batch", "seq", "hidden")


def mixture_of_experts(
    shape: TransformerShape, *, reads: str, seq: IterationDim
) -> tuple[list[Operator], tuple[str, ...]]:
    """Return the operators and the tensors whose sum is the output: routed, then shared."""
    group = ExpertGroup(experts=shape.experts, token_share=shape.top_k / shape.experts)
    width = shape.expert_latent or shape.hidden
    routed_from = "moe.latent_down" if shape.expert_latent else reads
    operators = [
        linear(
            "moe.router",
            reads=reads,
            writes="router_logits",
            in_features=shape.hidden,
            out_features=shape.experts,
            bias=shape.router_bias,
            seq=seq,
        ),
        _top_k(shape, seq=seq),
        *([_latent(shape, "down", reads=reads, seq=seq)] if shape.expert_latent else []),
        _dispatch(width, group, shape, reads=routed_from, seq=seq),
        *feed_forward(
            "moe.experts",
            reads="routed",
            writes="moe.experts.down",
            hidden=width,
            ffn=shape.expert_ffn,
            gated=shape.gated,
            activation=shape.activation,
            bias=shape.expert_bias,
            seq=seq,
            experts=group,
            joint=True,
        ),
        _combine(width, group, shape, seq=seq),
        *([_latent(shape, "up", reads="moe.combine", seq=seq)] if shape.expert_latent else []),
    ]
    routed = operators[-1].path
    if not shape.shared_ffn:
        return operators, (routed,)
    shared, output = _shared_experts(shape, reads=reads, seq=seq)
    return [*operators, *shared], (routed, output)


def _latent(shape: TransformerShape, way: str, *, reads: str, seq: IterationDim) -> Operator:
    """Return the projection between hidden state and what routed experts read and write."""
    widths = (shape.hidden, shape.expert_latent)
    first, last = widths if way == "down" else reversed(widths)
    return linear(
        f"moe.latent_{way}",
        reads=reads,
        in_features=first,
        out_features=last,
        bias=shape.mlp_bias,
        seq=seq,
    )


def _top_k(shape: TransformerShape, *, seq: IterationDim) -> Operator:
    return Operator(
        path="moe.topk",
        kind=OperatorKind.SOFTMAX,
        function="softmax_top_k",
        # The choice is made over all experts, so this dim cannot be split.
        dims=(BATCH, seq, features("expert", shape.experts, role=DimRole.OPAQUE)),
        inputs=(Operand(tensor="router_logits", dims=("batch", "seq", "expert")),),
        outputs=(Operand(tensor="routing", dims=("batch", "seq"), fraction=shape.top_k),),
        saved=("router_logits",),
        kernels=3,  # softmax, top-k, renormalize
    )


def _dispatch(
    width: int, group: ExpertGroup, shape: TransformerShape, *, reads: str, seq: IterationDim
) -> Operator:
    return Operator(
        path="moe.dispatch",
        kind=OperatorKind.PERMUTE,
        function="dispatch",
        dims=(group.dim, BATCH, seq, features("hidden", width)),
        inputs=(
            Operand(tensor=reads, dims=HIDDEN_DIMS),
            Operand(tensor="routing", dims=("batch", "seq"), fraction=shape.top_k),
        ),
        outputs=(Operand(tensor="routed", dims=_ROUTED_DIMS, fraction=group.token_share),),
        kernels=3,  # sort by expert, count, gather
    )


def _combine(
    width: int, group: ExpertGroup, shape: TransformerShape, *, seq: IterationDim
) -> Operator:
    expert = features("expert", shape.experts, role=DimRole.CONTRACTED, units=shape.experts)
    return Operator(
        path="moe.combine",
        kind=OperatorKind.PERMUTE,
        function="combine",
        dims=(expert, BATCH, seq, features("hidden", width)),
        inputs=(
            Operand(tensor="moe.experts.down", dims=_ROUTED_DIMS, fraction=group.token_share),
            Operand(tensor="routing", dims=("batch", "seq"), fraction=shape.top_k),
        ),
        outputs=(Operand(tensor="moe.combine", dims=HIDDEN_DIMS),),
        # The product with the routing weights keeps both factors.
        saved=("moe.experts.down", "routing"),
        kernels=2,  # weigh, scatter-add
    )


def _shared_experts(
    shape: TransformerShape, *, reads: str, seq: IterationDim
) -> tuple[list[Operator], str]:
    operators = feed_forward(
        "moe.shared",
        reads=reads,
        writes="moe.shared.down",
        hidden=shape.hidden,
        ffn=shape.shared_ffn,
        gated=shape.gated,
        activation=shape.activation,
        bias=shape.mlp_bias,
        seq=seq,
    )
    if not shape.shared_gate:
        return operators, "moe.shared.down"
    gate = linear(
        "moe.shared.gate",
        reads=reads,
        in_features=shape.hidden,
        out_features=1,
        seq=seq,
    )
    scale = elementwise(
        "moe.shared.scale",
        "sigmoid_scale",
        reads=[
            Operand(tensor="moe.shared.down", dims=HIDDEN_DIMS),
            Operand(tensor="moe.shared.gate", dims=("batch", "seq")),
        ],
        width=shape.hidden,
        seq=seq,
        saved=("moe.shared.down", "moe.shared.gate"),
        kernels=2,
    )
    return [*operators, gate, scale], "moe.shared.scale"
