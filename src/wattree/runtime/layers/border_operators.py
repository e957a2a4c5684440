"""Borders between features that every rank has whole and shards of them, compiled too."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from wattree.runtime.group import Group
from wattree.runtime.layers.operator import BackwardCall, LayerOperator, Parameters
from wattree.runtime.regions import gathered_parts, own_part
from wattree.runtime.shards import shard_widths


class _Border(LayerOperator):
    """Base of borders; `(…, features)` in and out, no parameters.

    Args:
        group: Ranks that share the features.
        features: Of the whole.
    """

    saves_input = False
    whole_input = True

    def __init__(self, *, group: Group, place: str, features: int) -> None:
        self.features, self.own = features, shard_widths(features, group.size)[group.rank]
        super().__init__(
            group=group,
            place=place,
            overlap=False,
            in_features=features if self.whole_input else self.own,
            facts={"kind": type(self).__name__, "features": features},
        )

    def forward(self, x: Tensor, parameters: Parameters) -> tuple[Tensor, list[Tensor]]:
        """Return the output; nothing is saved for backward."""
        del parameters
        return self._crossed(x), []

    def backward(self, call: BackwardCall) -> list[Tensor | None]:
        """Return the gradient on this side."""
        return [self._back(call.delta) if call.needs[0] else None]

    @abstractmethod
    def _crossed(self, x: Tensor) -> Tensor:
        """Return the output of the border."""

    @abstractmethod
    def _back(self, delta: Tensor) -> Tensor:
        """Return the gradient of the border's input."""

    def _part(self, x: Tensor) -> Tensor:
        # Never a view: what an operator returns must not be what it was given.
        return own_part(x, self.group).clone()

    def _whole(self, x: Tensor) -> Tensor:
        return gathered_parts(x, self.group, self.features, self.place)


class CopyOperator(_Border):
    """Each rank uses the whole; gradients, of which each rank has a part, are added up.

    Not for compiled graphs: what it returns is a view.
    """

    def _crossed(self, x: Tensor) -> Tensor:
        return x.view_as(x)

    def _back(self, delta: Tensor) -> Tensor:
        own = delta.clone(memory_format=torch.contiguous_format)
        return self.group.all_reduce(own, self.place).wait()


class SplitOperator(_Border):
    """Each rank takes its shard; gradients of shards are gathered."""

    def _crossed(self, x: Tensor) -> Tensor:
        return self._part(x)

    def _back(self, delta: Tensor) -> Tensor:
        return self._whole(delta)


class JoinOperator(_Border):
    """Shards are gathered; each rank takes its part of the gradient, equal on all ranks."""

    whole_input = False

    def _crossed(self, x: Tensor) -> Tensor:
        return self._whole(x)

    def _back(self, delta: Tensor) -> Tensor:
        return self._part(delta)
