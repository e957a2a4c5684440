"""The micro-batches of one replica, in an order that depends on seed and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wattree.arrays import Integers
from wattree.runtime.data.sets import SampleSet

Batch = tuple[tuple[Tensor, ...], Tensor | None]


class MicroBatches:
    """Iterates over the micro-batches of the steps from `first` to `last`.

    Args:
        mine: Takes of a batch what this rank needs.
        batch: Samples of a step over all replicas.
        replica, replicas: Which one this is, of how many.
        seed: Of the order.
        first, last: Steps, the last one not included.
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


def batch_samples(*, step: int, batch: int, samples: int, seed: int) -> Integers:
    """Return the samples of a step, `(batch,)`: each epoch is a permutation of all samples.

    A batch may end one epoch and begin the next, so that every batch is full.

    Args:
        step: Number of the step, from 0.
        batch: Samples of a step over all replicas.
        samples: Samples of the set.
        seed: Of the order.
    """
    at = np.arange(step * batch, (step + 1) * batch)
    epochs, places = np.divmod(at, samples)
    found = np.empty(batch, dtype=np.int64)
    for epoch in np.unique(epochs).tolist():
        mine = epochs == epoch
        found[mine] = _shuffled(seed, epoch, samples)[places[mine]]
    return found


@lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, samples: int) -> Integers:
    return np.random.default_rng([seed, epoch]).permutation(samples)
