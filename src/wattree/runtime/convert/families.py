"""Plans for common model families, found by the names of their linear layers.

- `ffn`: a stack of linear layers and elementwise functions: shards all through.
- `mlp`: the feed-forward parts of transformers, whole in and out, with hidden features in shards.
- `all`: these and the projections of attention, by heads.

What stands between is not cut, so that norms and residual sums stay as they are.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from torch import nn

from wattree.errors import StrategyError
from wattree.runtime.convert.dense import linear_layers
from wattree.runtime.convert.plan import (
    Adjustment,
    ConversionPlan,
    ConversionRule,
    CutKind,
    Side,
    rule_of,
)
from wattree.strategy.phantom import FEED_FORWARDS, known_transformer

#: Plans by name.
SHIPPED = ("ffn", "mlp", "all")


def _in(*patterns: str, head: str | None = None, parts: int = 1) -> tuple[ConversionRule, ...]:
    rules = (rule_of(pattern, "whole -> shard") for pattern in patterns)
    return tuple(replace(rule, head=head, parts=parts) for rule in rules)


def _out(pattern: str, head: str | None = None) -> tuple[ConversionRule, ...]:
    return (replace(rule_of(pattern, "shard -> whole"), head=head),)


def _keep(pattern: str) -> ConversionRule:
    return ConversionRule(pattern=pattern, kind=CutKind.KEEP, input=Side.WHOLE, output=Side.WHOLE)


#: Norms of single heads: each rank would see the gradient of its own heads only.
_HEAD_NORMS = {
    f"*.{name}": "normalizes heads with weights that all share, whose gradients would be partial; "
    "use plan 'mlp'"
    for name in ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")
}


def _feed_forward(family: str) -> tuple[ConversionRule, ...]:
    *first, last = FEED_FORWARDS[family]
    return (*_in(*first), *_out(last))


#: Feed-forward parts, by what they are named like.
_MLPS = {family: ConversionPlan(rules=_feed_forward(family)) for family in FEED_FORWARDS} | {
    "bert": ConversionPlan(rules=(_keep("*attention.output.dense"), *_feed_forward("bert"))),
    "torch": ConversionPlan(
        # Its fast path reads the weights of both and calls neither.
        rules=_feed_forward("torch"),
        adjustments=(Adjustment(layers="*linear1", attribute="activation_relu_or_gelu", value=0),),
    ),
}
#: Attention, of those whose code takes the number of heads from the width it meets.
_ATTENTIONS = {
    "llama": ConversionPlan(
        rules=(
            *_in("*attn.q_proj", "*attn.k_proj", "*attn.v_proj", head="head_dim"),
            *_out("*attn.o_proj", head="head_dim"),
        ),
        unfit=_HEAD_NORMS,
    ),
    "gpt2": ConversionPlan(
        rules=(
            *_in("*attn.c_attn", head="head_dim", parts=3),
            *_out("*attn.c_proj", head="head_dim"),
        ),
        adjustments=(Adjustment(layers="*attn.c_attn", attribute="split_size"),),
        unfit={"*crossattention": "attends to another sequence; use plan 'mlp'"},
    ),
    "bert": ConversionPlan(
        rules=(
            *_in(
                "*attention.self.query",
                "*attention.self.key",
                "*attention.self.value",
                head="attention_head_size",
            ),
            # The module that it is in knows no heads; the three above are cut alike.
            *_out("*attention.output.dense"),
        ),
    ),
}
#: Functions of single features, which shards can pass through.
_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.CELU),
    *(nn.SELU, nn.Mish, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid),
    *(nn.LogSigmoid, nn.Tanhshrink, nn.Identity, nn.Dropout),
)


def shipped_plan(module: nn.Module, name: str) -> ConversionPlan:
    """Return the built-in plan of that name for a module.

    Args:
        module: Dense.
        name: One of `SHIPPED`.

    Raises:
        StrategyError: There is no such plan, or it does not do for this module; with its linear
            layers.
    """
    if name not in SHIPPED:
        raise StrategyError(
            {"plan": f"found '{name}', expected {', '.join(SHIPPED)}, or patterns of layers"}
        )
    if name == "ffn":
        return _stack(module)
    family = known_transformer(linear_layers(module))
    if family is None:
        raise StrategyError({"plan": f"'{name}' knows no such model; {_name_them(module)}"})
    plan = _MLPS[family]
    if name == "mlp":
        return replace(plan, name=name)
    if family not in _ATTENTIONS:
        raise StrategyError(
            {
                "plan": f"'all' does not know the attention of models named like {family}: their "
                f"code counts heads itself; use 'mlp', or {_name_them(module)}"
            }
        )
    more = _ATTENTIONS[family]
    return ConversionPlan(
        rules=(*more.rules, *plan.rules),
        adjustments=(*plan.adjustments, *more.adjustments),
        unfit={**plan.unfit, **more.unfit},
        name=name,
    )


def _stack(module: nn.Module) -> ConversionPlan:
    """Return shards from the first linear layer to the last one, whole outside."""
    layers = linear_layers(module)
    if len(layers) < 2:
        raise StrategyError(
            {"plan": f"'ffn' wants two linear layers or more; {_name_them(module)}"}
        )
    names = list(layers)
    misfits = dict(_between(module, names))
    for before, after in pairwise(names):
        if layers[before].out_features != layers[after].in_features:
            misfits[after] = (
                f"reads {layers[after].in_features} features, but {before} makes "
                f"{layers[before].out_features}: no stack"
            )
    if misfits:
        raise StrategyError(misfits)
    rules = []
    for place, name in enumerate(names):
        begin = Side.WHOLE if place == 0 else Side.SHARD
        end = Side.WHOLE if place == len(names) - 1 else Side.SHARD
        rules.append(ConversionRule(pattern=glob.escape(name), input=begin, output=end))
    return ConversionPlan(rules=tuple(rules), name="ffn")


def _between(module: nn.Module, names: list[str]) -> Iterable[tuple[str, str]]:
    leaves = [(name, each) for name, each in module.named_modules() if not any(each.children())]
    places = [place for place, (name, _) in enumerate(leaves) if name in names]
    for name, each in leaves[places[0] : places[-1]]:
        if name not in names and not isinstance(each, _ELEMENTWISE):
            yield (
                name,
                f"is a {type(each).__name__} between linear layers, which does not work on shards "
                "of features; give patterns of layers",
            )


def _name_them(module: nn.Module) -> str:
    names = ", ".join(linear_layers(module)) or "none"
    return f"give patterns of its linear layers: {names}"
