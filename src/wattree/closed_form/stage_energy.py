"""Energy and power of whole steps, from those of their blocks, by kind of stage.

The devices draw what `energy.dynamic_energy_j` gives, as in the simulation; only the parts of a
step that run at once are replaced by formulas.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from wattree.accounts.energy_use import standing_w
from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.stage_sums import StageSums
from wattree.closed_form.stragglers import Stragglers
from wattree.sim.drawn import BINS


class Timed(NamedTuple):
    """Times of steps, `(n,)` or by kind of stage, `(rows,)`. [s]

    Attributes:
        step: Of a step, `(n,)`.
        update: Of it, the update of parameters, with the copies before it, `(rows,)`.
        computing: Of a micro-batch, `(rows,)`.
        traffic: Between replicas in a step, counted twice where two collectives run at once, and
            what a stage sends to others.
        overlapped: Of a step, computation and traffic at once, `(rows,)`.
    """

    step: Floats
    update: Floats
    computing: Floats
    traffic: Floats
    overlapped: Floats


class StageEnergy:
    """Energy and power of steps.

    Args:
        sums: Of tables, by kind of stage.
        behind: Effect of slow devices; None if there are none.
    """

    def __init__(self, sums: StageSums, inputs: Inputs, behind: Stragglers | None) -> None:
        self._sums, self._inputs, self._behind = sums, inputs, behind
        self.by_pool, self.kinds = sums.by_pool, sums.kinds
        self.tables = sums.by_pool[0]  # what depends on no device
        self._micro_batches = self.tables.degrees.micro_batches / self.kinds.copies

    def dynamic_j(self, timed: Timed) -> Floats:
        """Return the energy above idle of a step on all devices, before PUE, `(n,)`. [J]

        Computation next to traffic takes longer for the same FLOP, and traffic spins on what
        computation leaves of the limit: `overlapped_j` has both.
        """
        kinds, sums, several = self.kinds, self._sums, self._micro_batches[self.kinds.strategy]
        slowdown = sums.slowdown()
        stage = sums.block_rows(sums.over_pools("block_j"))
        if "often_j" not in self._sums.nothing:
            stage = stage + sums.storage_rows(sums.over_pools("often_j"))
        stage = several * stage + sums.storage_rows(sums.over_pools("rarely_j"))
        share = slowdown.compute_rate * timed.overlapped / np.maximum(timed.computing, 1e-30)
        alone_s = timed.traffic - slowdown.communication_rate * timed.overlapped
        stage = stage + self._decoding_j(several * timed.computing, stage)
        stage = stage + share * sums.block_rows(sums.over_pools("overlapped_j"))
        stage = stage + self._power_w("spin_w") * alone_s
        if self._behind is not None:
            names = ("forward_alone", "backward_alone")
            alone = sum(sums.block_rows(sums.over_pools(name)) for name in names)
            added_w = self._behind.added_w(self.tables.rates.power)
            stage = stage + several * alone * (added_w * self.tables.pool.node.host.behind)
        all_j = kinds.over_stages(stage) * self.tables.ranks / kinds.stages
        return np.asarray(all_j + self._inputs.energy_j(kinds))

    def energy_j(self, time_s: Floats, dynamic_j: Floats) -> Floats:
        """Return the energy of a step: static and dynamic. [J]"""
        pue = self.tables.setting.job.cluster.site.pue
        return np.asarray((self._standing_w * time_s + dynamic_j) * pue)

    def peak_power_w(self, timed: Timed, dynamic_j: Floats) -> Floats:
        """Return the highest mean power of the nodes over `1 / BINS` of a step, `(n,)`. [W]

        One stage runs what draws most there, the others that have a micro-batch draw their mean.
        Where weight gradients are deferred, twice as many have work.
        """
        kinds, tables = self.kinds, self.tables
        mean_w = peak_w = np.zeros(len(kinds.strategy))
        for shares, each in zip(kinds.shares, self.by_pool, strict=True):
            mean, peak = self._stage_w(each, timed)
            mean_w, peak_w = mean_w + shares[kinds.kind] * mean, peak_w + shares[kinds.kind] * peak
        window_s = timed.step[kinds.strategy] / BINS
        update_w = self._sums.storage_rows(self._sums.over_pools("rarely_j"))
        update_w = update_w / np.maximum(timed.update, 1e-30) * _covered(timed.update / window_s)
        work = tables.degrees.micro_batches * (1.0 + kinds.is_split)
        others_w = np.minimum(work / kinds.stages, 1.0) * kinds.over_stages(mean_w)
        above_w = kinds.most(np.maximum(peak_w, update_w) - mean_w)
        dynamic_w = (others_w + above_w) * tables.ranks / kinds.stages
        return np.asarray(self._standing_w + np.maximum(dynamic_w, dynamic_j / timed.step))

    def _stage_w(self, tables: BlockCostTable, timed: Timed) -> tuple[Floats, Floats]:
        """Return the power above idle of a device of a pool in each kind of stage, `(rows,)`. [W]

        On average while it has a micro-batch, and at most.
        """
        kinds, block = self.kinds, self._sums.block
        counts, several = kinds.counts[kinds.kind].T, self._micro_batches[kinds.strategy]
        own_s = np.stack([tables.forward, tables.backward]).take(block, axis=-1)
        lasts_s = own_s * tables.slowdown[kinds.strategy]
        energy_j = np.stack([tables.forward_j, tables.backward_j]).take(block, axis=-1)
        top_w, top_s = tables.tops.transpose(2, 1, 0, 3).take(block, axis=-1)
        if not self._sums.nothing >= {"gather", "every"}:
            lasts_s, energy_j, top_w = self._with_traffic(tables, lasts_s, energy_j, top_w)
        mean_w = (counts * energy_j).sum((0, 1)) / np.maximum((counts * lasts_s).sum((0, 1)), 1e-30)
        window_s = timed.step[kinds.strategy] / BINS
        own_w = energy_j / np.maximum(lasts_s, 1e-30)
        rest_w = (energy_j - top_w * top_s) / np.maximum(lasts_s - top_s, 1e-30)
        rest_w = np.minimum(np.maximum(rest_w, 0.0), own_w)
        inner_w = rest_w + (top_w - rest_w) * _covered(top_s / window_s, several * counts)
        run = counts / kinds.virtual[kinds.strategy]  # of such blocks, one after another
        share = _covered(run * lasts_s / window_s, several)
        above_w = (np.maximum(inner_w, own_w) - mean_w) * share
        return mean_w, mean_w + above_w.max(axis=(0, 1), initial=0.0)

    def _with_traffic(
        self, tables: BlockCostTable, own_s: Floats, own_j: Floats, top_w: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return time, energy and highest power of phases with the traffic of their parameters.

        Args:
            own_s, own_j, top_w: Without it, `(2, programs, rows)` each. [s, J, W]
        """
        overlap, slowdown = tables.overlap, self._sums.slowdown("gather", "every")
        behind, power = tables.pool.node.host.behind, tables.rates.power
        spin_w, storage = behind * power.spin_w, self._sums.storage
        gathers = np.stack([tables.gather, tables.again]).take(storage, axis=-1)
        every = np.stack([0.0 * tables.every, tables.every]).take(storage, axis=-1)
        if overlap.hides_gradients:  # what outlasts a block is not waited for
            every = np.minimum(every, own_s)
        hides = np.array([overlap.hides_forward_gathers, overlap.hides_backward_gathers])
        hidden = gathers * hides[:, None, None] + every * overlap.hides_gradients
        moved_s = gathers + every
        both_s = slowdown.hidden_s(hidden, own_s / slowdown.compute_rate)
        added_w = tables.overlapped_j / np.maximum(tables.forward + tables.backward, 1e-30)
        own_j = own_j + slowdown.compute_rate * both_s * added_w[:, self._sums.block]
        own_j = own_j + spin_w * (moved_s - slowdown.communication_rate * both_s)
        top_w = np.minimum(top_w + spin_w * (both_s > 0), behind * power.most_dynamic_w)
        return own_s + moved_s - slowdown.saved_s(both_s), own_j, top_w

    def _decoding_j(self, computing_s: Floats, computing_j: Floats) -> Floats | float:
        """Return the energy of decoding, which has what computation leaves on average. [J]

        In a simulation it has what each kernel leaves, so nothing during kernels that draw the
        limit: this is up to 1.8 times as much, 3.5 % of a step's energy (ViT-S on V100). Where
        micro-batches go both ways, both ends of a pipeline decode.

        Args:
            computing_s, computing_j: Of a step, `(rows,)`. [s, J]
        """
        decoded_s, spin_w = self._inputs.decoded_s(self.kinds), self._power_w("spin_w")
        left_w = self._power_w("most_dynamic_w") - computing_j / np.maximum(computing_s, 1e-30)
        both_s = np.minimum(decoded_s, computing_s)
        ends = np.minimum(self.kinds.copies, self.kinds.stages)[self.kinds.strategy]
        return ends * (spin_w * (decoded_s - both_s) + np.clip(left_w, 0.0, spin_w) * both_s)

    def _power_w(self, name: str) -> Floats:
        """Return a figure of the power of devices by kind of stage, `(rows,)`. [W]"""
        watts = [p.pool.node.host.behind * getattr(p.rates.power, name) for p in self.by_pool]
        return np.asarray(np.array(watts) @ self.kinds.shares)[self.kinds.kind]

    @cached_property
    def _standing_w(self) -> Floats:
        """The static power of the nodes of each strategy. [W]"""
        cluster = self.tables.setting.job.cluster
        counts, which = np.unique(self.tables.ranks, return_inverse=True)
        paid = [cluster.paid_nodes(cluster.pool_nodes(int(count))) for count in counts]
        watts = [sum(standing_w(cluster, nodes)) for nodes in paid]
        return np.array(watts)[which]


def _covered(lengths: Floats, times: Floats | None = None) -> Floats:
    """Return how much of the fullest of equal windows something covers that is in several places.

    A thing in one place covers `x - x**2 / 4` of a window on average, of length `x` in windows up
    to 2; the more there are, the closer one lies to all of a window.
    """
    lengths = np.minimum(lengths, 2.0)
    once = lengths * (1.0 - lengths / 4.0)
    if times is None:
        return np.asarray(once)
    most = np.minimum(lengths, 1.0)
    return np.asarray(most - (most - once) / np.maximum(times, 1.0))
