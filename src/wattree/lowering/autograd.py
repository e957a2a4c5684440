"""What software keeps for backward, and runs again, where a strategy tree does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from wattree.cost import Software
from wattree.graph import Operator, OperatorKind, TensorRole
from wattree.lowering.movement import resolved_overlap
from wattree.lowering.passes.operator_instruction import MATMULS
from wattree.strategy import Choices, Strategy, StrategyOptions


class Autograd(NamedTuple):
    """How a software family keeps what backward needs, where a tree does not say.

    Attributes:
        stops_early: Recomputation ends with the last operator that saves anything, as that of
            phantom layers does (`torch.utils.checkpoint` recomputes them).
        saves_gathered: What was gathered for a matmul waits for its backward.
        saves_listed: So do the outputs of matmuls that are kept in a recomputed module, needed or
            not.
    """

    stops_early: bool = False
    saves_gathered: bool = False
    saves_listed: bool = False

    @classmethod
    def of(cls, software: Software, choices: Strategy | StrategyOptions) -> Autograd:
        """Return that of a family with a strategy.

        What is gathered piece by piece, while matmuls read it, is nowhere whole.
        """
        overlaps = resolved_overlap(choices, software).tensor
        return cls(
            stops_early=software.stops_early,
            saves_gathered=software.saves_gathered and not overlaps,
            saves_listed=software.saves_listed and not software.compiled,
        )

    def applied(
        self,
        operators: Sequence[Operator],
        choices: tuple[Choices, ...],
        active: frozenset[str] = frozenset(),
    ) -> tuple[Choices, ...]:
        """Return the choices of a block's operators as the software keeps and recomputes.

        Args:
            active: Axes whose ranks split operators.
        """
        if self.saves_gathered or self.saves_listed:
            choices = tuple(
                self._saved(choice) if operator.kind in MATMULS else choice
                for operator, choice in zip(operators, choices, strict=True)
            )
        choices = _without_loss(operators, choices)
        stops = self.stops_early or any(choice.phantom for choice in choices)
        return _without_last(operators, choices, active) if stops else choices

    def _saved(self, choice: Choices) -> Choices:
        gathered = self.saves_gathered if choice.save_gathered is None else choice.save_gathered
        is_listed = self.saves_listed and choice.inside_region and not choice.recompute
        return replace(choice, save_gathered=gathered, save_output=is_listed)


def _without_loss(
    operators: Sequence[Operator], choices: tuple[Choices, ...]
) -> tuple[Choices, ...]:
    """Return the choices with the loss of a stack's last layer outside of its recomputed module."""
    loss = _loss(operators)
    return tuple(
        replace(choice, recompute=0.0, inside_region=False)
        if choice.inside_region and operator is loss
        else choice
        for operator, choice in zip(operators, choices, strict=True)
    )


def _loss(operators: Sequence[Operator]) -> Operator | None:
    """Return the last operator of a block if it makes a number, which nothing there can read."""
    last = operators[-1] if operators else None
    return None if last is None or any(output.dims for output in last.outputs) else last


def _without_last(
    operators: Sequence[Operator], choices: tuple[Choices, ...], active: frozenset[str]
) -> tuple[Choices, ...]:
    """Return the choices without recomputation of the last operators, whose outputs none saves.

    A matmul saves its operands before it runs, unless it is one function with its exchanges. Of
    others only sums and moves surely save nothing (what an activation saves may count as saved by
    the next block).
    """
    kept, loss = list(choices), _loss(operators)
    for number, operator in reversed(list(enumerate(operators))):
        if operator is loss:
            continue
        if _exchanges_inside(operator, kept[number], active):
            break
        saves = bool(operator.saved) or operator.saved_mask_bytes > 0
        is_sum = operator.kind is OperatorKind.ELEMENTWISE and len(operator.inputs) > 1
        is_plain = not saves and (is_sum or operator.kind is OperatorKind.PERMUTE)
        if not kept[number].recompute or not (is_plain or operator.kind in MATMULS):
            break
        kept[number] = replace(kept[number], recompute=0.0)
        if saves:
            break
    return choices if kept == list(choices) else tuple(kept)


def _exchanges_inside(operator: Operator, choice: Choices, active: frozenset[str]) -> bool:
    """Return whether a matmul and its exchanges are one function, which saves what it returns with.

    So are those of stacks and phantom layers: they run as `wattree.runtime.layers` has them.
    """
    if operator.kind not in MATMULS or operator.weight is None:
        return False
    axes = chain.from_iterable(choice.compute.get(dim, ()) for dim in operator.weight.dims)
    is_split = not active.isdisjoint(axes)
    return choice.phantom is not None or (operator.role is TensorRole.EITHER and is_split)
