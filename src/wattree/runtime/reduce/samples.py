"""How many samples a rank's gradients are of, so that a mean can be one over samples."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Samples:
    """Counts the samples of forward passes since gradients were last averaged.

    A rank that has joined (`model.join()`) has had no forward pass when DDP calls the hook in its
    place: its weight is 0.

    Args:
        by_samples: Whether ranks weigh as much as they had samples; otherwise all the same.
        count: Returns the samples of a forward pass from its positional and named arguments.
    """

    def __init__(
        self,
        model: Any,
        *,
        by_samples: bool,
        count: Callable[[Sequence[Any], Mapping[str, Any]], int],
    ) -> None:
        self._model = weakref.ref(model)  # which has this, by its hook
        self._by_samples, self._count = by_samples, count
        self._seen, self._passes = 0, 0
        self._weight: float | None = None
        self._handle = model.register_forward_pre_hook(self._forward, with_kwargs=True)

    def weight(self, *, is_first: bool, is_last: bool) -> float | None:
        """Return this rank's weight in the mean of a bucket; None if all ranks weigh the same.

        Args:
            is_first: The bucket is the first of a backward pass, for whose others this holds, too.
        """
        if is_first:
            self._weight = self._found()
        weight = self._weight
        if is_last:
            self._seen, self._passes = 0, 0
        return weight

    def close(self) -> None:
        """Count no more."""
        self._handle.remove()

    def _found(self) -> float | None:
        if self._by_samples:
            return float(self._seen)
        # DDP's own name for what `join` was asked; there is no public one.
        by_initial = getattr(self._model(), "_divide_by_initial_world_size", True)
        return None if by_initial else float(self._passes > 0)

    def _forward(self, module: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
        del module
        if torch.is_grad_enabled():
            self._passes += 1
            if self._by_samples:
                self._seen += self._count(given, named)


def rows_of(given: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Return the first dim of the first tensor among the arguments of a forward pass."""
    for value in (*given, *named.values()):
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
    return 0
