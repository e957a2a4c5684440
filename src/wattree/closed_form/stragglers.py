"""Effect of slow devices (`cluster.slowdown`) on screened strategies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.closed_form.stage_kinds import StageKinds
from wattree.energy import DevicePower
from wattree.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Factors on the computation of the ranks of each kind of stage, arrays of one shape.

    Attributes:
        slowest: Of the slowest rank of such stages: whatever synchronizes, waits for it.
        waits: By how much the ranks of a stage are ahead of its slowest, on average.
    """

    slowest: Floats
    mean: Floats
    waits: Floats

    def added_w(self, power: DevicePower) -> Floats:
        """Return the average energy above idle per second of a rank's even computation. [W]

        A slow rank draws for longer what running kernels draw; meanwhile others of its stage spin.
        """
        active_w = min(power.active_share * power.range_w, power.most_dynamic_w)
        return np.asarray((self.mean - 1.0) * active_w + self.waits * power.spin_w)


def slowed_kinds(job: Job, ranks: Floats, kinds: StageKinds) -> Stragglers | None:
    """Return the factors for a number of ranks, `(rows,)`; None if devices are equal.

    Args:
        ranks: Of each strategy, `(n,)`.
    """
    if not job.cluster.slowdown:
        return None
    found = np.ones((3, len(kinds.strategy)))
    for number, contents in enumerate(kinds.helds):
        own = kinds.pipeline == number
        of_kind = slowed_stages(job, ranks[own], contents.kind_of_stage)
        assert of_kind is not None
        columns = np.stack([of_kind.slowest, of_kind.mean, of_kind.waits])
        found[:, own[kinds.strategy]] = columns.transpose(0, 2, 1).reshape(3, -1)
    slowest, mean, waits = found
    return Stragglers(slowest=slowest, mean=mean, waits=waits)


def slowed_stages(job: Job, ranks: Floats, kind_of_stage: Integers) -> Stragglers | None:
    """Return the factors for a number of ranks, `(kinds, n)`; None if devices are equal.

    Args:
        ranks: Of each strategy, `(n,)`.
        kind_of_stage: Of each stage of their pipelines, `(stages,)`; stages of presets are
            neighbouring ranks.
    """
    given = job.cluster.slowdown
    if not given:
        return None
    factors = np.ones(job.cluster.devices)
    factors[list(given)] = list(given.values())
    if job.devices is not None:
        factors = factors[list(job.devices)]
    stages, kinds = len(kind_of_stage), int(kind_of_stage.max()) + 1
    counts, which = np.unique(ranks.astype(np.int64), return_inverse=True)
    found = np.ones((3, kinds, len(counts)))
    for column, count in enumerate(counts):
        if count > len(factors):  # such strategies have no devices
            continue
        by_stage = factors[:count].reshape(stages, -1)
        slowest, mean = by_stage.max(axis=1), by_stage.mean(axis=1)
        for kind in range(kinds):
            own = kind_of_stage == kind
            waits = (slowest - mean)[own].mean()
            found[:, kind, column] = slowest[own].max(), mean[own].mean(), waits
    slowest, mean, waits = found[:, :, which]
    return Stragglers(slowest=slowest, mean=mean, waits=waits)
