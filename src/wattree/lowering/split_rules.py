"""Into how many parts the loops of operators can be split, as divisibility rules over mesh axes.

`legality` asks for one strategy and adds what would help; searches ask once for a whole space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattree.arrays import Flags, Integers
from wattree.graph import DimRole, ModelGraph, Operator, OperatorKind
from wattree.strategy import Choices, StrategyOptions
from wattree.strategy.parts import column_dim, is_sample_table, row_dim
from wattree.strategy.presets import tree_of


@dataclass(frozen=True, slots=True, order=True)
class SplitRule:
    """`units` indivisible units are spread over the ranks of `axes`, so their degree divides it.

    Attributes:
        what: What the units are, for people.
        units: How many; 1 where the dim cannot be split.
        axes: Mesh axes.
    """

    what: str
    units: int
    axes: tuple[str, ...]

    @property
    def reason(self) -> str:
        """The message for strategies that break the rule."""
        over = " × ".join(self.axes)
        if self.units == 1:
            return f"{self.what} cannot be split over {over}"
        return f"{self.units} {self.what} do not divide over {over}"


def has_attention(model: ModelGraph) -> bool:
    """Return whether any operator is attention."""
    return any(o.kind is OperatorKind.ATTENTION for o in model.operators)


def has_split_positions(model: ModelGraph) -> bool:
    """Return whether positions of a sample can be split: attention defines their exchange.

    Not where anything runs over positions in turn, or slides over them.
    """
    positional = [o for o in model.operators if o.has_dim("seq")]
    return any(o.kind is OperatorKind.ATTENTION for o in positional) and not any(
        o.in_turn == "seq" or o.window is not None for o in positional
    )


def has_equal_chunks(layers: int, stages: Any, virtual: Any) -> Any:
    """Return whether all virtual stages have the same number of layers; of numbers or arrays."""
    return layers % (stages * virtual) == 0


def split_rules(
    model: ModelGraph, options: StrategyOptions, sequence: int
) -> tuple[SplitRule, ...]:
    """Return the rules that the presets' splits of `model` impose, each once.

    Args:
        options: Sequence and expert parallelism; its degrees say which axes split at all.
        sequence: Tokens per sample.
    """
    tree = tree_of(options, model)
    found: set[SplitRule] = set()
    for path, name in {instance.block: instance.path for instance in model.instances}.items():
        near = tree.below(name)
        for operator in model.blocks[path].operators:
            choices = near.choices(f"{name}.{operator.path}")
            for dim, axes in (*choices.compute.items(), *_blocks(operator, choices)):
                if not axes or not operator.has_dim(dim):
                    continue
                units = indivisible_units(operator, dim, sequence)
                if units is not None:
                    what = counted_units(operator, dim) or f"features of {operator.path}"
                    found.add(SplitRule(what, units, axes))
    return tuple(sorted(found))


def _blocks(operator: Operator, choices: Choices) -> list[tuple[str, tuple[str, ...]]]:
    """Return the dims that a phantom layer has in blocks, one to a rank, with its axis."""
    if choices.phantom is None:
        return []
    dims = (row_dim(operator), column_dim(operator))
    return [(dim, (choices.phantom.axis,)) for dim in dims if dim is not None]


def illegal_by_rule(
    rules: Sequence[SplitRule], axes: Mapping[str, Integers]
) -> tuple[tuple[SplitRule, Flags], ...]:
    """Return for each rule which meshes break it, shape `(n,)` each.

    Args:
        axes: Axis → degrees of every mesh, shape `(n,)` each.
    """
    found = []
    for rule in rules:
        degree = np.prod([axes[axis] for axis in rule.axes], axis=0)
        found.append((rule, rule.units % degree != 0))
    return tuple(found)


def indivisible_units(operator: Operator, dim: str, sequence: int) -> int | None:
    """Return how many units a loop has that no rank can share; None where any degree splits it.

    1 where it cannot be split: what is opaque, runs in turn, or has a window sliding over it.

    Args:
        sequence: Tokens per sample.
    """
    loop = operator.dim(dim)
    slides = operator.window is not None and dim == "seq"
    if loop.role is DimRole.OPAQUE or operator.in_turn == dim or slides:
        return 1
    # Samples are counted elsewhere. Rows of tables are dealt out, the last rank has some fewer; and
    # vocabularies are padded.
    if dim in {"batch", "vocab"} or (is_sample_table(operator) and dim == row_dim(operator)):
        return None
    if loop.units is not None:
        return loop.units
    # An expert's positions are a mean of routing; dispatch counts the positions themselves.
    if dim == "seq" and operator.has_dim("expert") and operator.kind is not OperatorKind.PERMUTE:
        return None
    return round(loop.extent.coefficient * (sequence if loop.extent.seq else 1))


def counted_units(operator: Operator, dim: str) -> str | None:
    """Return the name of a loop's indivisible units for messages, if there are any."""
    of_attention = operator.kind is OperatorKind.ATTENTION or "attention" in operator.path
    if of_attention and operator.dim(dim).units is not None and dim in {"out", "heads", "in"}:
        # A rank computes whole key/value heads with their queries, or a copy of one of them.
        return "heads" if dim == "in" else "key/value heads"
    known = {"seq": "positions", "expert": "experts", "vocab": "rows of the vocabulary"}
    return known.get(dim)
