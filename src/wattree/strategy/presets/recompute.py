"""Recomputation of activations in backward.

`full`: every layer from its input (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
2016). `selective`: the attention core only (Korthikanti et al., 2022). `selective_operator`: all
but attention and every other product, in the order of torchtitan's modules. `selective_matmul`: all
but the products (JAX's `dots_with_no_batch_dims_saveable`, MaxText's `minimal`).
`selective_attention_matmul`: all but the products of attention (MaxText's `save_dot_except_mlp`).
`selective_qkv`: all but the query, key and value projections (MaxText's `save_qkv_proj`).
`block_N`: every N-th layer in full. `modules_A+B`: of every layer, those modules (Megatron-Core's
`recompute_modules`). `saves_A+B`: all but those outputs (JAX's `save_only_these_names`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from wattree.graph import ModelGraph, Operator, OperatorKind
from wattree.strategy.options import StrategyOptions
from wattree.strategy.parts import (
    layer_paths,
    layer_patterns,
    operator_patterns,
)
from wattree.strategy.specs import (
    DISCARDED_OUTPUTS,
    MODULES,
    RECOMPUTED_MODULES,
    SAVED_OUTPUTS,
    SAVES,
    recomputed_modules,
    saved_outputs,
)
from wattree.strategy.tree import ActivationStore, MemoryChoice, StrategyTree, TreeNode

#: What is computed again in backward.
RECOMPUTED = TreeNode(memory=MemoryChoice(activations=ActivationStore.RECOMPUTE))
_KEEP = TreeNode(memory=MemoryChoice(activations=ActivationStore.KEEP))
#: It reads what is recomputed, and runs once.
_UNSAVED = TreeNode(memory=MemoryChoice(activations=ActivationStore.RECOMPUTE, recompute_share=0.0))
_MATMULS = (
    "attention.qkv",
    "attention.out",
    "mlp.up",
    "mlp.down",
    "moe.experts.up",
    "moe.experts.down",
    "mamba.in_proj",
    "mamba.out_proj",
)
#: Whose outputs no backward needs: only what the next operator saved.
_LAST = ("mlp.down", "moe.experts.down", "mamba.out_proj")
#: Recomputation of whole layers but for these operators.
_OF_LAYERS: Final[Mapping[str, Mapping[str, TreeNode]]] = {
    "selective_matmul": dict.fromkeys(_MATMULS, _KEEP),
    # torchtitan saves what is exchanged with other ranks, too.
    "selective_operator": dict.fromkeys(("attention.core", "moe.dispatch", "moe.combine"), _KEEP),
    "selective_attention_matmul": dict.fromkeys((*_MATMULS[:2], *_LAST), _KEEP),
    "selective_qkv": dict.fromkeys((_MATMULS[0], *_LAST), _KEEP),
}


def recomputation(options: StrategyOptions, model: ModelGraph) -> StrategyTree:
    """Return the recomputed layers or operators, including those that the model itself recomputes.

    Args:
        options: `recompute` says how.
    """
    kind = options.memory.recompute
    own = dict.fromkeys(model.checkpointed, RECOMPUTED)
    if kind == "none":
        return StrategyTree(nodes=own)
    layers = layer_patterns(model)
    nodes: dict[str, TreeNode] = {}
    if kind == "full":
        nodes = dict.fromkeys(layers, RECOMPUTED)
    elif kind == "selective":
        nodes = dict.fromkeys(_attentions(model), RECOMPUTED)
    elif kind in _OF_LAYERS:
        nodes = dict.fromkeys(layers, RECOMPUTED)
        kept = _OF_LAYERS[kind].items()
        nodes |= {f"{layer}.{path}": node for layer in layers for path, node in kept}
        if kind == "selective_operator":
            nodes |= {f"{layer}.{path}": n for layer in layers for path, n in _counted(model)}
    elif kind.startswith(SAVES):
        saved = _saving(set(saved_outputs(kind)), model).items()
        nodes = dict.fromkeys(layers, RECOMPUTED)
        nodes |= {f"{layer}.{path}": node for layer in layers for path, node in saved}
    elif kind.startswith(MODULES):
        paths = [path for name in recomputed_modules(kind) for path in RECOMPUTED_MODULES[name]]
        nodes = {f"{layer}.{path}": RECOMPUTED for layer in layers for path in paths}
        nodes |= _discarding(kind, layers)
        # What adds the result to the stream is no part of a module.
        nodes |= {f"{layer}.{path}.residual": _KEEP for layer in layers for path in ("mlp", "moe")}
    elif kind.startswith("block_"):
        every = int(kind.removeprefix("block_"))
        nodes = dict.fromkeys(layer_paths(model)[::every], RECOMPUTED)
    return StrategyTree(nodes=own | nodes)


def _saving(names: AbstractSet[str], model: ModelGraph) -> dict[str, TreeNode]:
    """Return the operators of a layer some of whose outputs are kept, by path."""
    nodes = {}
    for path in dict.fromkeys(path for paths in SAVED_OUTPUTS.values() for path in paths):
        parts = output_shares(path, model)
        again = sum(share for name, share in parts.items() if name not in names)
        if again < sum(parts.values()):
            memory = MemoryChoice(recompute_share=again) if again else _KEEP.memory
            nodes[path] = TreeNode(memory=memory)
    return nodes


def output_shares(path: str, model: ModelGraph) -> dict[str, float]:
    """Return the outputs of an operator, and the share of it that each is."""
    names = [name for name, paths in SAVED_OUTPUTS.items() if path in paths]
    if path == "attention.qkv" and _attentions(model):
        return dict(zip(names, _heads(model), strict=True))
    if path.endswith(".up") and not _is_gated(path, model):
        return {"up": 1.0}
    return dict.fromkeys(names, 1 / len(names))


def _is_gated(path: str, model: ModelGraph) -> bool:
    """Return whether a linear layer makes a gate too: twice what the next one reads."""
    after = f"{path.removesuffix('up')}down"
    wide = {o.dim("out").extent.coefficient for o in model.operators if o.path == path}
    read = {2 * o.dim("in").extent.coefficient for o in model.operators if o.path == after}
    return bool(wide & read)


def _counted(model: ModelGraph) -> Iterator[tuple[str, TreeNode]]:
    """Yield matmuls of layers that recompute every second product, in the order of modules.

    Those of experts, which are grouped, and of routers are not counted, and recomputed whole.
    """
    for name in dict.fromkeys(each.block for each in model.instances if each.is_layer):
        before = 0
        widths = {o.path: o.dim("in").extent.coefficient for o in _products(model, name)}
        for operator in _products(model, name):
            shares, path = [1.0], operator.path
            if path.endswith("attention.qkv"):
                shares = _heads(model)
            elif path.endswith(".up"):  # with a gate, two
                wide = operator.dim("out").extent.coefficient
                inner = widths.get(f"{path.removesuffix('.up')}.down", wide)
                shares = [inner / wide] * round(wide / inner)
            again = sum(share for n, share in enumerate(shares, before) if n % 2 == 1)
            before += len(shares)
            memory = MemoryChoice(recompute_share=again) if again else _KEEP.memory
            yield path, TreeNode(memory=memory)


def _products(model: ModelGraph, block: str) -> list[Operator]:
    """Return the linear layers of a block that every token passes."""
    return [
        operator
        for operator in model.blocks[block].operators
        if operator.kind is OperatorKind.MATMUL
        and {"in", "out"} <= {dim.name for dim in operator.dims}
        and not operator.path.startswith(("moe.experts", "moe.router"))
    ]


def _heads(model: ModelGraph) -> list[float]:
    """Return the shares of queries, keys and values in the projection that makes them."""
    core = next(o for o in model.operators if o.kind is OperatorKind.ATTENTION)
    heads = core.query_heads + 2.0 * core.kv_heads
    return [core.query_heads / heads, *[core.kv_heads / heads] * 2]


def _discarding(kind: str, layers: Sequence[str]) -> dict[str, TreeNode]:
    """Return the nodes of what reads modules whose outputs are discarded until backward needs them.

    They do not run again, unless they lie in such a module, but what they save is made again.
    """
    names = recomputed_modules(kind)
    within = tuple(f"{path}." for name in names for path in RECOMPUTED_MODULES[name])
    readers = [path for name in names for path in DISCARDED_OUTPUTS.get(name, ())]
    outside = [path for path in readers if not f"{path}.".startswith(within)]
    return {f"{layer}.{path}": _UNSAVED for layer in layers for path in outside}


def _attentions(model: ModelGraph) -> tuple[str, ...]:
    if model.own_family:
        return tuple(f"{layer}.attention.core" for layer in layer_patterns(model))
    found = operator_patterns(model, lambda o: o.kind is OperatorKind.ATTENTION)
    return tuple(pattern for pattern, _ in found)
