"""Linear layers of another's module, shared by the ranks of a replica.

Which ones, and how they lie, is what a plan says (see `wattree.runtime.convert`): phantom layers by
`phantomize` itself, exact ones by the same plans with the exact kinds in the place of phantom ones.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from wattree.errors import JobError, StrategyError
from wattree.runtime.convert import (
    ConversionPlan,
    ConversionRule,
    CutKind,
    Side,
    conversion_of,
    phantomize,
)
from wattree.runtime.convert.convert import planned
from wattree.runtime.convert.cuts import listed
from wattree.runtime.convert.dense import linear_layers
from wattree.runtime.convert.families import shipped_plan
from wattree.runtime.models.linears import Linears
from wattree.runtime.recipe import Recipe, ReplicaKind
from wattree.runtime.shards import shard_widths
from wattree.strategy import PAIR, names_layer

#: What is exact and lies as a phantom layer does; a layer of whole input and output is neither.
_EXACT = {
    (Side.WHOLE, Side.SHARD): CutKind.COLUMN,
    (Side.SHARD, Side.WHOLE): CutKind.ROW,
    (Side.SHARD, Side.SHARD): CutKind.ROWS,
}
#: Most names of layers in a message.
_MOST_NAMES = 12


def shared_module(module: nn.Module, linears: Linears, source: str) -> nn.Module:
    """Return a module with linear layers shared by the ranks of a replica; all of them call this.

    Args:
        module: Whole, and the same on every rank.
        linears: Who shares it, and how.
        source: Of the job, for messages.

    Raises:
        JobError: No plan fits, with the linear layers that there are.
    """
    recipe = linears.recipe
    try:
        plan = _plan(module, recipe, linears.group.size)
        is_phantom = recipe.kind is ReplicaKind.PHANTOM
        options: dict[str, Any] = {"overlap": recipe.overlap}
        options |= {"regather": recipe.options.phantoms.regather} if is_phantom else {}
        shared = phantomize(
            module,
            linears.group,
            ghosts=recipe.ghosts if is_phantom else 0,
            variant=recipe.options.phantoms.variant,
            plan=plan if is_phantom else replace(plan, rules=_exact(plan.rules)),
            from_dense=not is_phantom,  # exact layers hold the model's own weights
            **options,
        )
        _check_dropout(shared, plan, linears.group.size)
    except StrategyError as error:
        problems = [f"{place}: {text}" for place, text in error.misfits.items()]
        raise JobError(source, [*problems, f"model: {_help(module, recipe.kind)}"]) from error
    return shared


def _plan(module: nn.Module, recipe: Recipe, size: int) -> ConversionPlan:
    """Return the plan of the named layers, or the first shipped one that fits the module."""
    if recipe.options.phantoms.layers is not None:
        return _named(module, recipe.options.phantoms.layers, size)
    reasons: dict[str, str] = {}
    for name in ("mlp", "ffn"):  # a transformer may look like a stack, and is none
        try:
            plan = shipped_plan(module, name)
        except StrategyError as error:
            reasons |= {f"plan {name}: {place}": text for place, text in error.misfits.items()}
            continue
        return plan if name == "ffn" else _with_attention(module, plan, size)
    raise StrategyError({"strategy": f"{recipe.kind} knows no plan for this module", **reasons})


def _with_attention(module: nn.Module, plan: ConversionPlan, size: int) -> ConversionPlan:
    """Add exact layers of attention by heads, as simulations have them, where that fits."""
    whole = _by_heads(module, plan, size)
    attention = tuple(rule for rule in whole.rules if rule not in plan.rules)
    # Of both, the exact rules go first: those of feed-forward parts may match more.
    return replace(whole, rules=(*_exact(attention), *plan.rules))


def _by_heads(module: nn.Module, plan: ConversionPlan, size: int) -> ConversionPlan:
    """Return the plan of feed-forward parts and of attention; without attention if it is unfit."""
    try:
        whole = shipped_plan(module, "all")
        planned(module, whole, size=size, ghosts=0, variant=PAIR)
    except StrategyError:  # unknown attention, or heads that do not divide: it stays whole
        return plan
    return whole


def _named(module: nn.Module, patterns: Iterable[str], size: int) -> ConversionPlan:
    """Return a plan in which the named layers are phantom layers.

    In a known transformer they are split as in simulations: hidden features and heads in
    shards, with exact layers instead of those that are not named. In other models they have whole
    inputs and outputs, which works with any module between layers.

    Patterns are of names of modules, or of their ends, as `simulate` names layers of a block.
    """
    names = list(linear_layers(module))
    chosen: dict[str, None] = {}
    misfits = {}
    for pattern in patterns:
        found = [name for name in names if names_layer(pattern, name)]
        if not found:
            misfits[f"strategy.phantom_layers.{pattern}"] = "names no linear layer"
        chosen |= dict.fromkeys(found)
    if misfits:
        raise StrategyError(misfits)
    known = _transformer(module, size)
    rules = (_rule_of(name, known, is_named=name in chosen) for name in names)
    found_rules = tuple(rule for rule in rules if rule is not None)
    return replace(known, rules=found_rules, name="strategy.phantom_layers")


def _transformer(module: nn.Module, size: int) -> ConversionPlan:
    """Return the plan of a transformer that is known; one without rules for any other module."""
    try:
        return _by_heads(module, shipped_plan(module, "mlp"), size)
    except StrategyError:
        return ConversionPlan(rules=())


def _rule_of(name: str, known: ConversionPlan, *, is_named: bool) -> ConversionRule | None:
    """Return the rule of one layer; None where it stays."""
    rule = known.rule(name)
    if rule is not None and rule.kind is CutKind.KEEP:
        rule = None
    if not is_named:
        return None if rule is None else _exact([replace(rule, pattern=glob.escape(name))])[0]
    if rule is None:
        return ConversionRule(pattern=glob.escape(name), input=Side.WHOLE, output=Side.WHOLE)
    return replace(rule, pattern=glob.escape(name))


def _exact(rules: Iterable[ConversionRule]) -> tuple[ConversionRule, ...]:
    """Return rules of exact layers in the place of those of phantom layers."""
    return tuple(
        replace(rule, kind=_EXACT[rule.input, rule.output])
        if rule.kind is CutKind.PHANTOM
        else rule
        for rule in rules
    )


def _check_dropout(module: nn.Module, plan: ConversionPlan, size: int) -> None:
    """Refuse random numbers both for shards of unequal width and for whole tensors.

    Ranks that draw different counts would drop different features of what all have whole.

    Raises:
        StrategyError: The module has both.
    """
    if plan.name == "ffn":  # nothing is whole between the first layer and the last one
        return
    draws = any(isinstance(each, nn.Dropout) and each.p > 0 for each in module.modules())
    misfits = {
        cut.name: f"cuts {width} features unevenly over {size} ranks, which then draw dropout "
        "differently; expected a width that divides, or a dropout of 0"
        for cut in (layer.cut for layer in conversion_of(module).layers)
        for side, width in ((cut.input, cut.in_features), (cut.output, cut.out_features))
        if side is Side.SHARD and len(set(shard_widths(width, size))) > 1
    }
    if draws and misfits:
        raise StrategyError(misfits)


def _help(module: nn.Module, kind: ReplicaKind) -> str:
    fix = (
        "name some with strategy.phantom_layers"
        if kind is ReplicaKind.PHANTOM
        else "use preset ddp"
    )
    return f"linear layers are {listed(linear_layers(module), _MOST_NAMES)}; {fix}"
