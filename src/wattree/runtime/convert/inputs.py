"""Inputs shared by several layers: their gradient is exchanged once.

Queries, keys and values of attention, or gate and up, read one tensor that every rank has whole.
Each would exchange the gradient of it by itself; behind a border that they share, autograd adds the
gradients up before the border sends the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.nn import functional

from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.convert.plan import CutKind, Side
from wattree.runtime.layers import ColumnParallelLinear
from wattree.runtime.layers.operator import autocast_dtype
from wattree.runtime.regions import copy_parts


class InputBorder:
    """The border of an input shared by layers; each input crosses it once.

    What crossed is held until all have read it.
    """

    def __init__(self, readers: int = 1) -> None:
        self.readers = readers
        self._crossed: _Crossed | None = None

    def __deepcopy__(self, _: Any) -> InputBorder:
        """Return an independent border for the copy."""
        return InputBorder()

    @_disable_dynamo  # what it remembers is of this run
    def cross(self, border: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return what x is behind a border, cached if an earlier layer has computed it.

        Args:
            border: Alike in all layers that share it.
            x: Their input.
        """
        if self.readers == 1:
            return border(_cast(x))
        crossed, now = self._crossed, _state(x)
        if crossed is None or crossed.given is not x or crossed.state != now:
            crossed = _Crossed(given=x, state=now, made=border(_cast(x)), readers=self.readers)
        crossed.readers -= 1
        self._crossed = crossed if crossed.readers else None
        return crossed.made


@dataclass(slots=True, kw_only=True)
class _Crossed:
    """An input, its result, and the number of layers that have yet to read it."""

    given: Tensor
    state: tuple[Any, ...]
    made: Tensor
    readers: int


def _state(x: Tensor) -> tuple[Any, ...]:
    """Return the state that must be equal for two reads to be of the same input."""
    version = x._version  # noqa: SLF001 - PyTorch has no other word for "not written to since"
    return version, x.requires_grad, torch.is_grad_enabled(), autocast_dtype(x)


def _cast(x: Tensor) -> Tensor:
    """Return an input as layers take it, so that its gradient is exchanged in their type."""
    dtype = autocast_dtype(x)
    return x if dtype is None else x.to(dtype)


class SharedColumnLinear(ColumnParallelLinear):
    """A column layer that shares its input; its gradient is all-reduced with the others'.

    Args:
        others: As of `ColumnParallelLinear`.
    """

    def __init__(self, *args: Any, border: InputBorder, **others: Any) -> None:
        super().__init__(*args, **others)
        self._border = border

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)`."""
        if self.group.size == 1:
            return super().forward(x)
        return functional.linear(self._border.cross(self._copied, x), self.weight, self.bias)

    def _copied(self, x: Tensor) -> Tensor:
        self._operator.check(x, ())
        self._operator.agreed(x, (x.requires_grad,))
        return copy_parts(x, self.group, self.name)


def borders_of(cuts: Iterable[LayerCut]) -> dict[str, InputBorder]:
    """Return the borders of adjacent layers that may share one, by name.

    Layers of one module that read as many features whole. Those of them that turn out to read
    other tensors have borders of their own in effect.
    """
    alike: dict[tuple[Any, ...], list[str]] = {}
    for cut in cuts:
        if cut.kind is CutKind.COLUMN or (cut.kind is CutKind.PHANTOM and cut.input is Side.WHOLE):
            parent = cut.name.rpartition(".")[0]
            alike.setdefault((parent, cut.kind, cut.in_features), []).append(cut.name)
    found: dict[str, InputBorder] = {}
    for names in alike.values():
        if len(names) > 1:
            found |= dict.fromkeys(names, InputBorder(readers=len(names)))
    return found
