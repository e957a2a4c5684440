"""The cut of every layer that a plan names; all are checked before anything changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from wattree.errors import StrategyError
from wattree.runtime.convert.dense import DenseLayer, linear_layers, why_not
from wattree.runtime.convert.plan import ConversionPlan, ConversionRule, CutKind, Side
from wattree.runtime.layers.ghosts import VARIANTS
from wattree.runtime.shards import shard_widths


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCut:
    """How one layer is sharded over ranks; sufficient to build it and to undo it.

    Attributes:
        kind: What it becomes; never `keep`.
        in_features, out_features: Of the whole layer.
        bias: Whether it has one.
        ghosts: Of each rank; 0 but for phantom layers.
        parts: Layers of one width that it is in one.
        is_transposed: Whether the original's weight is stored `(in, out)`.
    """

    name: str
    kind: CutKind
    in_features: int
    out_features: int
    size: int
    bias: bool
    input: Side
    output: Side
    ghosts: int
    variant: str
    parts: int
    is_transposed: bool

    @property
    def in_widths(self) -> tuple[int, ...]:
        """Input widths of every rank; the whole width for column layers."""
        whole = self.kind is CutKind.COLUMN
        return (self.in_features,) if whole else shard_widths(self.in_features, self.size)

    @property
    def out_widths(self) -> tuple[int, ...]:
        """Output widths of every rank; the whole width for row layers."""
        whole = self.kind is CutKind.ROW
        return (self.out_features,) if whole else shard_widths(self.out_features, self.size)


def cuts_of(
    module: nn.Module, plan: ConversionPlan, *, size: int, ghosts: int, variant: str
) -> dict[str, LayerCut]:
    """Return how the layers of a module are cut, by name.

    Raises:
        StrategyError: All that does not fit: patterns that name nothing, layers that are not
            linear, share weights or have a width that the ranks cannot share, heads that would be
            cut, more ghosts than features.
    """
    layers = linear_layers(module)
    misfits = _misfits_of_plan(module, plan, layers)
    if variant not in VARIANTS:
        misfits["variant"] = f"'{variant}' is none of {', '.join(VARIANTS)}"
    found = {}
    for name, layer in layers.items():
        rule = plan.rule(name)
        if rule is None or rule.kind is CutKind.KEEP:
            continue
        reasons = list(_reasons(module, layer, rule, size, ghosts))
        if reasons:
            misfits[name] = "; ".join(reasons)
            continue
        found[name] = LayerCut(
            name=name,
            kind=rule.kind,
            in_features=layer.in_features,
            out_features=layer.out_features,
            size=size,
            bias=layer.bias is not None,
            input=rule.input,
            output=rule.output,
            ghosts=_ghosts(rule, ghosts),
            variant=variant,
            parts=rule.parts,
            is_transposed=layer.is_transposed,
        )
    if misfits:
        raise StrategyError(misfits)
    return found


def _ghosts(rule: ConversionRule, ghosts: int) -> int:
    if rule.kind is not CutKind.PHANTOM:
        return 0
    return ghosts if rule.ghosts is None else rule.ghosts


def _misfits_of_plan(
    module: nn.Module, plan: ConversionPlan, layers: Mapping[str, DenseLayer]
) -> dict[str, str]:
    kinds = {name: type(each).__name__ for name, each in module.named_modules() if name}
    misfits = {}
    for rule in plan.rules:
        if any(fnmatchcase(name, rule.pattern) for name in layers):
            continue
        others = [name for name in kinds if fnmatchcase(name, rule.pattern)]
        known = listed(layers)
        found = (
            f"names {others[0]}, a {kinds[others[0]]}, and no linear layer"
            if others
            else "names no module"
        )
        misfits[f"{plan.name}.{rule.pattern}"] = f"{found}; linear layers are {known}"
    for pattern, why in plan.unfit.items():
        for name in kinds:
            if fnmatchcase(name, pattern):
                misfits[name] = why
    return misfits


def listed(names: Iterable[str], most: int | None = None) -> str:
    """Return the first names as text; names that differ only by numbers are grouped."""
    every = (
        ".".join("*" if part.isdigit() else part for part in name.split(".")) for name in names
    )
    folded = list(dict.fromkeys(every))
    return ", ".join(folded[:most] + ["…"] * (len(folded) > len(folded[:most]))) or "none"


def _reasons(
    module: nn.Module, layer: DenseLayer, rule: ConversionRule, size: int, ghosts: int
) -> Iterable[str]:
    why = why_not(module, layer)
    if why:
        yield why
    cut = {"in": rule.kind is not CutKind.COLUMN, "out": rule.kind is not CutKind.ROW}
    widths = {"in": layer.in_features, "out": layer.out_features}
    few = [side for side in cut if cut[side] and widths[side] < size]
    for side in few:
        yield f"has {widths[side]} {side}puts, less than the {size} ranks"
    if few:
        return
    if rule.parts > 1 and widths["out"] % (rule.parts * size):
        yield (
            f"has {widths['out']} outputs, of {rule.parts} layers in one; each has to divide over "
            f"the {size} ranks"
        )
    k, smallest = _ghosts(rule, ghosts), min(shard_widths(widths["in"], size))
    if rule.kind is CutKind.PHANTOM and not 0 <= k <= smallest:
        yield (
            f"found {k} ghosts, expected 0 to {smallest}, the smallest of its shards "
            f"({widths['in']} over {size} ranks)"
        )
    yield from _cut_heads(module, layer, rule, size)


def _cut_heads(
    module: nn.Module, layer: DenseLayer, rule: ConversionRule, size: int
) -> Iterable[str]:
    if rule.head is None:
        return
    head = rule.head
    if isinstance(head, str):
        parent = module.get_submodule(layer.name.rpartition(".")[0])
        if not isinstance(getattr(parent, head, None), int):
            yield f"is in a {type(parent).__name__} without the attribute '{head}' of its heads"
            return
        head = int(getattr(parent, head))
    is_output = rule.output is Side.SHARD
    width = layer.out_features // rule.parts if is_output else layer.in_features
    if any(part % head for part in shard_widths(width, size)):
        yield (
            f"has {width // head} heads of {head} features, which {size} ranks cannot share "
            "without cutting one"
        )
