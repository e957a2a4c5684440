"""Plans: the linear layers to shard, and the layout of their inputs and outputs. No torch.

    plan = {"*.up": "whole -> shard", "*.down": "shard -> whole", "head": "keep"}

A pattern is that of `fnmatch` on names of modules; `*` matches dots too. The first pattern that
matches a layer decides, and a layer that none matches stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase

from wattree.errors import StrategyError


class CutKind(StrEnum):
    """The kind of sharded layer that replaces a linear layer."""

    PHANTOM = "phantom"  # own block dense, others of rank k
    COLUMN = "column"  # exact: whole input, own outputs
    ROW = "row"  # exact: own inputs, outputs summed over ranks
    ROWS = "rows"  # exact: own inputs are gathered, own outputs
    KEEP = "keep"  # stays, whole on every rank


class Side(StrEnum):
    """Layout of the features of an input or output."""

    WHOLE = "whole"  # all of them on every rank
    SHARD = "shard"  # those of each rank


#: What the exact kinds read and make.
_FIXED = {
    CutKind.COLUMN: (Side.WHOLE, Side.SHARD),
    CutKind.ROW: (Side.SHARD, Side.WHOLE),
    CutKind.ROWS: (Side.SHARD, Side.SHARD),
    CutKind.KEEP: (Side.WHOLE, Side.WHOLE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionRule:
    """How to shard the layers that match a pattern.

    Attributes:
        pattern: Of names of modules.
        input: How their inputs lie.
        output: How their outputs lie. A phantom layer whose output is whole gathers it.
        parts: Layers of one width that it is in one (q, k and v), of each of which a rank has a
            shard. Outputs in shards only.
        head: Features that stay together on the side in shards: a number, or the name of an
            attribute of the module that the layer is in. None cuts anywhere.
        ghosts: Of these layers; None: the number given for all.
    """

    pattern: str
    kind: CutKind = CutKind.PHANTOM
    input: Side = Side.SHARD
    output: Side = Side.SHARD
    parts: int = 1
    head: int | str | None = None
    ghosts: int | None = None

    def __post_init__(self) -> None:
        at = f"plan.{self.pattern}"
        sides = (self.input, self.output)
        if self.kind in _FIXED and sides != _FIXED[self.kind]:
            wanted = " -> ".join(_FIXED[self.kind])
            raise StrategyError(
                {at: f"{self.kind} is {wanted}, found {' -> '.join(sides)}; give no sides"}
            )
        if self.parts < 1 or (self.parts > 1 and self.output is Side.WHOLE):
            raise StrategyError(
                {at: f"found parts {self.parts}, expected 1 or more, and 1 for whole outputs"}
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """An attribute of modules around converted layers that must change with them.

    Attributes:
        layers: Pattern of converted layers; the attribute belongs to the module that contains them.
        value: What it becomes; None: it is divided by the number of ranks.
    """

    layers: str
    attribute: str
    value: int | bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan:
    """The layers of a model to shard, and how.

    Attributes:
        rules: In the order in which they are asked.
        adjustments: Of the modules around them.
        unfit: Pattern of modules that must not be there → why the plan does not do for them.
        name: What messages call it.
    """

    rules: tuple[ConversionRule, ...]
    adjustments: tuple[Adjustment, ...] = ()
    unfit: Mapping[str, str] = field(default_factory=dict)
    name: str = "plan"

    def rule(self, name: str) -> ConversionRule | None:
        """Return the rule of a layer; None if no pattern matches its name."""
        return next((rule for rule in self.rules if fnmatchcase(name, rule.pattern)), None)


def rule_of(pattern: str, mapping: str) -> ConversionRule:
    """Return the rule parsed from `[kind] [input -> output]`; the default kind is phantom.

    Raises:
        StrategyError: It says nothing of the kind.
    """
    words = mapping.replace("->", " -> ").split()
    kind = CutKind.PHANTOM
    if words and words[0] in {each.value for each in CutKind}:
        kind = CutKind(words.pop(0))
    sides = _FIXED.get(kind, (Side.SHARD, Side.SHARD))
    known = {each.value for each in Side}
    if words:
        if len(words) != 3 or words[1] != "->" or not {words[0], words[2]} <= known:
            raise StrategyError(
                {
                    f"plan.{pattern}": f"found '{mapping}', expected [phantom] whole|shard -> "
                    "whole|shard, or one of column, row, rows, keep"
                }
            )
        sides = (Side(words[0]), Side(words[2]))
    return ConversionRule(pattern=pattern, kind=kind, input=sides[0], output=sides[1])


def plan_of_mapping(mapping: Mapping[str, str | ConversionRule]) -> ConversionPlan:
    """Return the plan from a mapping of patterns to rules.

    Raises:
        StrategyError: All values that say nothing known, or no patterns at all.
    """
    rules, misfits = [], {}
    for pattern, value in mapping.items():
        if isinstance(value, ConversionRule):
            rules.append(value)
            continue
        try:
            rules.append(rule_of(pattern, value))
        except StrategyError as error:
            misfits.update(error.misfits)
    if not mapping:
        misfits["plan"] = "is empty; give patterns of linear layers"
    if misfits:
        raise StrategyError(misfits)
    return ConversionPlan(rules=tuple(rules))
