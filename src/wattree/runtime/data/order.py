"""The samples of each step: a function of seed and step alone, independent of ranks."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from wattree.arrays import Integers


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
