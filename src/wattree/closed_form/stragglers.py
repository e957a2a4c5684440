"""What devices that compute slower than others (`cluster.slowdown`) do to screened strategies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattree.closed_form.stage_kinds import StageKinds
from wattree.energy import DevicePower
from wattree.job import Job
from wattree.lowering.costs import PhaseCosts
from wattree.lowering.program import CollectiveStep

__all__ = ["Stragglers", "computing_s", "slowed_kinds"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Factors on the computation of the ranks of each kind of stage, `(rows,)`.

    Attributes:
        slowest: Of the slowest rank of such stages: whatever synchronises, waits for it.
        mean: Over their ranks.
        waits: By how much the ranks of a stage are ahead of its slowest, on average.
    """

    slowest: Floats
    mean: Floats
    waits: Floats

    def added_w(self, power: DevicePower) -> Floats:
        """Return the energy above rest per second of a rank's even computation, on average. [W]

        A slow rank draws for longer what running kernels draw; meanwhile others of its stage spin.
        """
        active_w = min(power.active_share * power.range_w, power.most_dynamic_w)
        return np.asarray((self.mean - 1.0) * active_w + self.waits * power.spin_w)


def slowed_kinds(job: Job, ranks: Floats, kinds: StageKinds) -> Stragglers | None:
    """Return the factors of strategies on so many ranks; None where all devices are alike.

    Args:
        job: With its cluster.
        ranks: Of each strategy, `(n,)`.
        kinds: What their stages hold; stages of presets are neighbouring ranks.
    """
    given = job.cluster.slowdown
    if not given:
        return None
    factors = np.ones(job.cluster.devices)
    factors[list(given)] = list(given.values())
    if job.devices is not None:
        factors = factors[list(job.devices)]
    found = np.ones((3, len(kinds.strategy)))
    alike = np.stack([kinds.pipeline, ranks.astype(np.int64)])
    for shape in np.unique(alike, axis=1).T:
        number, count = (int(each) for each in shape)
        if count > len(factors):  # such strategies have no devices
            continue
        held = kinds.helds[number]
        by_stage = factors[:count].reshape(held.stages, -1)
        slowest, mean = by_stage.max(axis=1), by_stage.mean(axis=1)
        rows = (alike == shape[:, None]).all(axis=0)[kinds.strategy]
        of_kind = []
        for kind in range(len(held.first)):
            own = held.kind_of_stage == kind
            waits = (slowest - mean)[own].mean()
            of_kind.append((slowest[own].max(), mean[own].mean(), waits))
        found[:, rows] = np.tile(np.array(of_kind).T, int(rows.sum()) // len(held.first))
    slowest, mean, waits = found
    return Stragglers(slowest=slowest, mean=mean, waits=waits)


def computing_s(phase: PhaseCosts) -> Floats:
    """Return the time of a block's phase without its collectives. [s]"""
    works = [not isinstance(step, CollectiveStep) for step in phase.steps]
    return np.asarray((phase.latency_s + phase.work_s)[works].sum(axis=0))
