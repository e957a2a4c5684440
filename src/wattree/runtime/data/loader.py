"""The micro-batches of one replica, in an order that depends on seed and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from wattree.runtime.data.order import batch_samples
from wattree.runtime.data.sets import SampleSet

Batch = tuple[tuple[Tensor, ...], Tensor | None]


class MicroBatches:
    """Iterates over the micro-batches of the steps from `first` to `last`.

    Args:
        samples: All of them, in memory.
        mine: Takes of a batch what this rank needs.
        batch: Samples of a step over all replicas.
        replica, replicas: Which one this is, of how many.
        micro_batches: Of a step.
        seed: Of the order.
        first, last: Steps, the last one not included.
        device: Where batches go.
    """

    def __init__(
        self,
        samples: SampleSet,
        *,
        mine: Callable[[tuple[Tensor, ...], Tensor | None], Batch],
        batch: int,
        replica: int,
        replicas: int,
        micro_batches: int,
        seed: int,
        first: int,
        last: int,
        device: torch.device,
    ) -> None:
        self._samples, self._mine, self._batch = samples, mine, batch
        self._replica, self._share = replica, batch // replicas
        self._micro_batches, self._seed = micro_batches, seed
        self._steps, self._device = range(first, last), device

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return len(self._steps) * self._micro_batches

    def __iter__(self) -> Iterator[Batch]:
        """Yield inputs and targets, on the device."""
        size = self._share // self._micro_batches
        for step in self._steps:
            order = batch_samples(
                step=step, batch=self._batch, samples=self._samples.samples, seed=self._seed
            )
            begin = self._replica * self._share
            for part in range(self._micro_batches):
                chosen = order[begin + part * size : begin + (part + 1) * size]
                yield self._at(torch.from_numpy(chosen))

    def _at(self, chosen: Tensor) -> Batch:
        targets = self._samples.targets
        inputs, targets = self._mine(
            tuple(each[chosen] for each in self._samples.inputs),
            None if targets is None else targets[chosen],
        )
        return (
            tuple(each.to(self._device, non_blocking=True) for each in inputs),
            None if targets is None else targets.to(self._device, non_blocking=True),
        )
