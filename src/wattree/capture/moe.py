"""Mixture-of-experts feed-forward part: router, dispatch, experts, combine, shared experts.

Routed tensors are `(expert, batch, seq, hidden)`: expert by expert, the tokens sent to it, their
positions keeping the names `batch` and `seq`. With balanced routing an expert sees
`top_k / experts` of the positions. In `dispatch` and `combine` the loop runs over all positions
and the routed operand holds that share of it; in the experts the loop itself is that much shorter.
"""

from __future__ import annotations

from dataclasses import replace

from wattree.capture.mlp import feed_forward
from wattree.capture.parts import HIDDEN_DIMS, Builder, features
from wattree.graph import DimRole, IterationDim, ModelGraph, Operand, Operator, OperatorKind

#: Architectures whose modules in the transformers library run every expert on every token, and
#: weigh most of them by zero (`Llama4TextMoe`, in all its releases).
RUN_ALL_EXPERTS = frozenset({"llama4", "llama4_text"})
_ROUTED_DIMS = ("expert", "batch", "seq", "hidden")


def with_all_tokens(graph: ModelGraph) -> ModelGraph:
    """Return the graph of a mixture, read or captured, with every expert on every token.

    It remembers the share of the tokens that an expert is needed for.
    """
    shares = [
        each.dim("seq").extent.coefficient
        for each in graph.operators
        if each.has_dim("expert") and each.has_dim("seq")
    ]
    whole = graph.mapped(lambda each: _whole(each) if each.has_dim("expert") else each)
    return replace(whole, needed_tokens=min((1.0, *shares)))


def with_needed_tokens(graph: ModelGraph) -> ModelGraph:
    """Return the graph with the loops of experts over the tokens that they are needed for."""
    share = graph.needed_tokens

    def needed_dim(dim: IterationDim) -> IterationDim:
        extent = replace(dim.extent, coefficient=dim.extent.coefficient * share)
        return replace(dim, extent=extent) if dim.name == "seq" else dim

    def needed(operator: Operator) -> Operator:
        if not operator.has_dim("expert") or operator.kind is not OperatorKind.MATMUL:
            return operator
        return replace(operator, dims=tuple(map(needed_dim, operator.dims)))

    return graph if share == 1.0 else graph.mapped(needed)


def _whole(operator: Operator) -> Operator:
    def whole_dim(dim: IterationDim) -> IterationDim:
        extent = replace(dim.extent, coefficient=max(dim.extent.coefficient, 1.0))
        return replace(dim, extent=extent) if dim.name == "seq" else dim

    def whole_operand(operand: Operand) -> Operand:
        return replace(operand, fraction=1.0) if "expert" in operand.dims else operand

    return replace(
        operator,
        dims=tuple(map(whole_dim, operator.dims)),
        inputs=tuple(map(whole_operand, operator.inputs)),
        outputs=tuple(map(whole_operand, operator.outputs)),
    )


def mixture_of_experts(build: Builder, *, reads: str) -> tuple[list[Operator], tuple[str, ...]]:
    """Return the operators and the tensors whose sum is the output: routed, then shared."""
    shape = build.shape
    hidden, latent, bias = shape.hidden, shape.expert_latent, shape.mlp_bias
    width, routed_from = hidden, reads
    router = {"router_logits": shape.experts}
    operators = [
        build.linear("moe.router", reads, hidden, router, bias=shape.router_bias),
        _top_k(build),
    ]
    if latent:
        width, routed_from = latent, "moe.latent_down"
        operators.append(build.linear(routed_from, reads, hidden, latent, bias=bias))
    operators += [
        _dispatch(build, width, reads=routed_from),
        *feed_forward(
            Builder(shape, build.seq, routed=True),
            "moe.experts",
            reads="routed",
            hidden=width,
            ffn=shape.expert_ffn,
            bias=shape.expert_bias,
            joint=True,
        ),
        _combine(build, width),
    ]
    if latent:
        operators.append(build.linear("moe.latent_up", "moe.combine", latent, hidden, bias=bias))
    routed = operators[-1].path
    if not shape.shared_ffn:
        return operators, (routed,)
    operators += _shared_experts(build, reads=reads)
    return operators, (routed, operators[-1].path)


def _top_k(build: Builder) -> Operator:
    shape = build.shape
    return Operator(
        path="moe.topk",
        kind=OperatorKind.SOFTMAX,
        function="softmax_top_k",
        # The choice is made over all experts, so this dim cannot be split.
        dims=(*build.lead, features("expert", shape.experts, role=DimRole.OPAQUE)),
        inputs=(Operand(tensor="router_logits", dims=("batch", "seq", "expert")),),
        outputs=(Operand(tensor="routing", dims=("batch", "seq"), fraction=shape.top_k),),
        saved=("router_logits",),
        kernels=3,  # softmax, top-k, renormalize
    )


def _dispatch(build: Builder, width: int, *, reads: str) -> Operator:
    return Operator(
        path="moe.dispatch",
        kind=OperatorKind.PERMUTE,
        function="dispatch",
        dims=(build.expert, *build.lead, features("hidden", width)),
        inputs=(
            Operand(tensor=reads, dims=HIDDEN_DIMS),
            Operand(tensor="routing", dims=("batch", "seq"), fraction=build.shape.top_k),
        ),
        outputs=(Operand(tensor="routed", dims=_ROUTED_DIMS, fraction=build.token_share),),
        kernels=3,  # sort by expert, count, gather
        expert_groups=(build.shape.expert_groups, build.shape.group_top_k),
    )


def _combine(build: Builder, width: int) -> Operator:
    experts = replace(build.expert, role=DimRole.CONTRACTED)
    return Operator(
        path="moe.combine",
        kind=OperatorKind.PERMUTE,
        function="combine",
        dims=(experts, *build.lead, features("hidden", width)),
        inputs=(
            Operand(tensor="moe.experts.down", dims=_ROUTED_DIMS, fraction=build.token_share),
            Operand(tensor="routing", dims=("batch", "seq"), fraction=build.shape.top_k),
        ),
        outputs=(Operand(tensor="moe.combine", dims=HIDDEN_DIMS),),
        # The product with the routing weights keeps both factors.
        saved=("moe.experts.down", "routing"),
        kernels=2,  # weigh, scatter-add
        expert_groups=(build.shape.expert_groups, build.shape.group_top_k),
    )


def _shared_experts(build: Builder, *, reads: str) -> list[Operator]:
    shape, path, gate = build.shape, "moe.shared", "moe.shared.gate"
    operators = feed_forward(build, path, reads=reads, ffn=shape.shared_ffn, bias=shape.mlp_bias)
    if not shape.shared_gate:
        return operators
    output = operators[-1].path
    scale = build.elementwise(
        "moe.shared.scale",
        "sigmoid_scale",
        output,
        Operand(tensor=gate, dims=("batch", "seq")),
        saved=(output, gate),
        kernels=2,
    )
    return [*operators, build.linear(gate, reads, shape.hidden, 1), scale]
