"""Model graphs of generation: a pass over the prompts, and one token after a cache of others.

The graph of a decode step is the model's with one position for each sequence. Its attention reads
`cache_length` keys and values from the cache; everything else follows from the loop nests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from wattree.capture.frozen import all_frozen
from wattree.graph import (
    SCAN,
    AttentionMask,
    Block,
    DimRole,
    Extent,
    IterationDim,
    KeyValueCache,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
)

#: Batch norm with the running statistics instead of the batch's.
RUNNING_NORM: Final = "batch_norm_inference"


#: The weighted sum of a token's experts, what shared experts add to it, and the sum of both.
_COMBINE: Final = "moe.combine"
_SHARED: Final = ("moe.shared.scale", "moe.shared.down")
_SUM: Final = "moe.sum"

#: What writes the latent vector that all heads of latent attention read (DeepSeek).
LATENT: Final = "attention.kv_down"


def generation_misfit(graph: ModelGraph) -> str | None:
    """Return why a model cannot generate tokens one after another; None if it can."""
    operators = list(graph.operators)
    attention = [operator for operator in operators if operator.mask is not None]
    if not graph.own_family:
        return (
            "is captured or described by its layers, so what a KV cache would hold is not known; "
            "use a language model of the catalog, a config.json of one or a transformer block, or "
            "workload: forward"
        )
    if any(operator.function == SCAN for operator in operators):
        return "has state-space layers, whose decode kernels are not modeled; use workload: forward"
    if any(block.startswith(("encoder", "decoder")) for block in graph.blocks):
        return "has an encoder and a decoder, expected a decoder alone; use workload: forward"
    if not attention or not all(o.mask is not None and o.mask.causal for o in attention):
        return (
            "attends to later positions (an encoder), so it cannot generate; use workload: forward"
        )
    if not any(operator.kind is OperatorKind.CROSS_ENTROPY for operator in operators):
        return "has no logits over a vocabulary to pick a token by; use workload: forward"
    return None


def prefill_graph(graph: ModelGraph, *, positions: int) -> ModelGraph:
    """Return the graph of the pass over the prompts, which fills the cache.

    Logits are those of each sequence's last position, by which its first token is picked.

    Args:
        positions: That the cache has room for: of prompt and generated tokens.
    """
    return _changed(graph, cache_length=None, positions=positions)


def decode_graph(graph: ModelGraph, *, cache_length: float, positions: int) -> ModelGraph:
    """Return the graph of the step that makes one token of each sequence, at sequence length 1.

    Args:
        cache_length: Positions that attention reads, the new one included.
        positions: That the cache has room for.
    """
    return _changed(graph, cache_length=cache_length, positions=positions)


def _changed(graph: ModelGraph, *, cache_length: float | None, positions: int) -> ModelGraph:
    graph = _running(graph)
    blocks = {
        name: _block(block, cache_length=cache_length, positions=positions)
        for name, block in graph.blocks.items()
    }
    return replace(graph, blocks=blocks)


def _block(block: Block, *, cache_length: float | None, positions: int) -> Block:
    by_path = {operator.path: operator for operator in block.operators}
    is_head = any(o.kind is OperatorKind.CROSS_ENTROPY for o in block.operators)
    changed = []
    for operator in block.operators:
        if operator.kind is OperatorKind.ATTENTION:
            operator = _attention(operator, by_path.get(LATENT), cache_length, positions)  # noqa: PLW2901
        elif is_head:
            operator = _last_position(operator)  # noqa: PLW2901
        changed.append(operator)
    return replace(block, operators=tuple(changed))


def with_late_sums(block: Block) -> Block:
    """Return a block whose experts' partial sums over ranks are added once for each token.

    Inference engines combine a token's copies and add shared experts before they all-reduce (vLLM
    0.11, `FusedMoE.maybe_all_reduce_tensor_model_parallel`).
    """
    by_path = {operator.path: operator for operator in block.operators}
    if _COMBINE not in by_path:
        return block
    shared = next((path for path in _SHARED if path in by_path), None)
    changed = []
    for operator in block.operators:
        read = {operand.tensor for operand in operator.inputs}
        if shared is not None and {_COMBINE, shared} <= read and operator.path != _SUM:
            both = [each for each in operator.inputs if each.tensor in {_COMBINE, shared}]
            summed = Operand(tensor=_SUM, dims=both[0].dims)
            outputs = (replace(operator.outputs[0], tensor=_SUM),)
            changed.append(
                replace(operator, path=_SUM, inputs=tuple(both), outputs=outputs, kernels=1)
            )
            rest = tuple(each for each in operator.inputs if each not in both)
            operator = replace(operator, inputs=(*rest, summed), kernels=1)  # noqa: PLW2901
        changed.append(operator)
    late = {_COMBINE, _SUM, *_SHARED[:1]}
    return replace(block, operators=tuple(replace(o, passes_sums=o.path in late) for o in changed))


def _last_position(operator: Operator) -> Operator:
    """Return an operator of the head on one position of each sequence; the loss picks a token."""
    dims = tuple(
        replace(dim, extent=Extent()) if dim.name == "seq" else dim for dim in operator.dims
    )
    if operator.kind is OperatorKind.CROSS_ENTROPY:
        return replace(operator, path="sampling", function="sampling", dims=dims)
    return replace(operator, dims=dims)


def _attention(
    operator: Operator, latent: Operator | None, cache_length: float | None, positions: int
) -> Operator:
    """Return attention with its cache, and with one query if it reads that."""
    assert operator.mask is not None
    window = operator.mask.window
    room = float(positions if window is None else min(window, positions))
    values = float(operator.kv_heads * (operator.head_dim + operator.value_head_dim))
    if latent is not None:
        values = latent.dim("out").extent.coefficient
    cache = KeyValueCache(
        positions=room,
        elements=values,
        by_heads=latent is None,
        is_read=cache_length is not None,
    )
    if cache_length is None:
        return replace(operator, cache=cache)
    keys = Extent(coefficient=cache_length if window is None else min(window, cache_length))
    dims = tuple(
        replace(dim, extent=keys) if dim.name == "kv_seq" else dim for dim in operator.dims
    )
    # One query sees all that is cached: nothing is masked.
    read = replace(operator, dims=dims, cache=cache, mask=AttentionMask(causal=False))
    return read if latent is None else _absorbed(read, latent)


def _absorbed(operator: Operator, latent: Operator) -> Operator:
    """Return latent attention on compressed vectors, which all heads read.

    What made keys and values of them is multiplied into queries and results instead: as many FLOP,
    and the same weights, so that product stays as it is (DeepSeek-AI, "DeepSeek-V2", 2024, section
    2.1.2).
    """
    width = latent.dim("out").extent.coefficient
    rank = round(width * latent.outputs[0].fraction)
    compressed = IterationDim(name="latent", extent=Extent(coefficient=width), role=DimRole.OPAQUE)
    queries, _, *rest = operator.inputs
    return replace(
        operator,
        dims=(*operator.dims, compressed),
        inputs=(
            queries,
            Operand(tensor="kv_latent", dims=("batch", "kv_seq", "latent")),
            *rest,
        ),
        saved=(),
        head_dim=round(width),
        value_head_dim=rank,
    )


def evaluated(graph: ModelGraph) -> ModelGraph:
    """Return the graph of a forward pass alone, as modules run it after `eval()`.

    No parameter is trained, dropout passes its input on, batch norms use running statistics, and
    no labels are there for a loss.
    """
    return _running(graph).mapped(
        lambda o: replace(o, kernels=0) if o.kind is OperatorKind.CROSS_ENTROPY else o
    )


def _running(graph: ModelGraph) -> ModelGraph:
    """Return the same with what picks a token by its logits in place of a loss."""
    return all_frozen(graph).mapped(_evaluated)


def _evaluated(operator: Operator) -> Operator:
    if operator.kind is OperatorKind.BATCH_NORM and "batch_norm" in operator.function:
        return replace(operator, function=RUNNING_NORM)
    if operator.function == "dropout":
        return replace(operator, kernels=0, saved_mask_bytes=0.0)
    return operator
