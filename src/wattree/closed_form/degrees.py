"""Degrees of many strategies as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Integers
from wattree.strategy import AXES, SCHEDULES, StrategyOptions

#: Above any degree, micro-batch or number of virtual stages.
MANY = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Arrays of degrees, one entry per strategy.

    Attributes:
        axes: Axis → degrees, for every axis of `AXES`, shape `(n,)`.
        micro_batch: Samples per forward pass and replica, `(n,)`.
        virtual_stages: `(n,)`.
        micro_batches: Per step and replica, `(n,)`.
        schedule: Place of the pipeline schedule in `SCHEDULES`, `(n,)`.
        whole: Entries of which these are a part: blocks are compiled for the axes of all, and have
            costs for the degrees of all. None if these are all.
        rows: Where in `whole` these are, `(n,)`.
    """

    axes: Mapping[str, Integers]
    micro_batch: Integers
    virtual_stages: Integers
    micro_batches: Integers
    schedule: Integers
    whole: Degrees | None = None
    rows: Integers | None = None

    @classmethod
    def of(cls, options: Sequence[StrategyOptions], global_batch: int) -> Degrees:
        """Return the degrees of `options`."""
        return cls(
            axes={axis: np.array([o.value(axis) for o in options]) for axis in AXES},
            micro_batch=np.array([o.pipeline.micro_batch for o in options]),
            virtual_stages=np.array([o.pipeline.virtual_stages for o in options]),
            micro_batches=np.array([_micro_batches(o, global_batch) for o in options]),
            schedule=np.array([SCHEDULES.index(o.pipeline.schedule) for o in options]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Degrees]) -> Degrees:
        """Return the entries of one after those of the other."""
        return cls(
            axes={axis: np.concatenate([part.axes[axis] for part in parts]) for axis in AXES},
            micro_batch=np.concatenate([part.micro_batch for part in parts]),
            virtual_stages=np.concatenate([part.virtual_stages for part in parts]),
            micro_batches=np.concatenate([part.micro_batches for part in parts]),
            schedule=np.concatenate([part.schedule for part in parts]),
        )

    def part(self, rows: Integers) -> Degrees:
        """Return some entries, whose blocks are those of all."""
        return replace(self.take(rows), whole=self, rows=rows)

    def take(self, index: Integers | slice) -> Degrees:
        """Return the entries at `index`, alone."""
        return Degrees(
            axes={axis: values[index] for axis, values in self.axes.items()},
            micro_batch=self.micro_batch[index],
            virtual_stages=self.virtual_stages[index],
            micro_batches=self.micro_batches[index],
            schedule=self.schedule[index],
        )

    @property
    def active(self) -> frozenset[str]:
        """Return the axes that blocks are compiled for."""
        axes = (self.whole or self).axes
        return frozenset(axis for axis, values in axes.items() if (values > 1).any())


def _micro_batches(options: StrategyOptions, global_batch: int) -> int:
    """Return the micro-batches of one process, per step and replica."""
    share = options.colocation.process_batch(global_batch)
    return share // (options.replicas * options.pipeline.micro_batch)
