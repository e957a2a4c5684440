"""The input pipeline in closed form, for arrays of strategies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.stage_kinds import StageKinds
from wattree.cost.loading import Loader, part_times_s, split_times_s
from wattree.energy import dynamic_energy_j, loading_energy_j
from wattree.lowering.loading import BUFFERS

_NOTHING = np.zeros(())


class Inputs:
    """The time that data loading adds to strategies; 0 if the job describes no loader.

    Args:
        by_pool: Costs of blocks, by pool.
    """

    def __init__(self, by_pool: Sequence[BlockCostTable]) -> None:
        self.by_pool = by_pool
        # Nothing: no bytes, and no time of any core.
        loader = by_pool[0].setting.job.data.loader or Loader(workers=1)
        self.loader = loader.shared(by_pool[0].options.colocation.processes)
        self.is_known = by_pool[0].setting.job.data.loader is not None

    def period_s(self, kinds: StageKinds) -> Floats:
        """Return the time of the slowest concurrent part of the input pipeline, `(n,)`. [s]"""
        if not self.is_known:
            return _NOTHING
        return self._times_s(kinds, micro_batches=self._micro_batches(kinds))[0]

    def waited_s(self, kinds: StageKinds) -> Floats:
        """Return the wait of a micro-batch for its copy, by kind of stage, `(rows,)`. [s]"""
        if self.loader.copies_ahead or not self.is_known:
            return _NOTHING
        _, waited = self._times_s(kinds, micro_batches=np.ones(len(kinds.pipeline)))
        return np.asarray((kinds.stage == 0) * waited[kinds.strategy])

    def device_bytes(self, kinds: StageKinds) -> Floats:
        """Return the memory of input batches on a device of each kind of stage, `(rows,)`. [B]"""
        if not self.is_known:
            return _NOTHING
        micro_batch = self.by_pool[0].degrees.micro_batch
        size = BUFFERS[self.loader.copies_ahead] * micro_batch * self.loader.tensor_bytes
        return np.asarray((kinds.stage == 0) * size[kinds.strategy])

    def decoded_s(self, kinds: StageKinds) -> Floats | float:
        """Return the time that a device of each kind of stage decodes in a step, `(rows,)`. [s]"""
        if not self.is_known or self.loader.device_decode_s is None:
            return 0.0
        samples = self._micro_batches(kinds) * self.by_pool[0].degrees.micro_batch
        each_s = samples * self.loader.processes * self.loader.device_decode_s
        return np.asarray((kinds.stage == 0) * each_s[kinds.strategy])

    def energy_j(self, kinds: StageKinds) -> Floats:
        """Return the energy above idle of hosts, storage and copies for the data of a step. [J]"""
        if not self.is_known:
            return _NOTHING
        samples = self._micro_batches(kinds) * self.by_pool[0].degrees.micro_batch
        samples = samples * self._loaders(kinds) * self.loader.processes
        copied = samples * self.loader.copied_bytes
        hosts_j = loading_energy_j(
            core_s=samples * self.loader.core_s,
            read_bytes=samples * self.loader.sample_bytes,
            copied_bytes=copied,
        )
        none, whole_j = np.zeros(len(samples)), np.zeros(len(samples))
        first = np.array([contents.pools[:, 0] for contents in kinds.helds]).T[:, kinds.pipeline]
        for tables, share in zip(self.by_pool, first, strict=True):
            copies_j = dynamic_energy_j(  # bytes that their memory takes in
                tables.rates.power,
                flop=none,
                traffic_bytes=share * copied * self._served(),
                busy_s=none,
                communicates=none > 0,
                copies=none == 0,
            )
            whole_j = whole_j + tables.pool.node.host.behind * (share * hosts_j + copies_j)
        return whole_j

    def _micro_batches(self, kinds: StageKinds) -> Floats:
        return np.asarray(self.by_pool[0].degrees.micro_batches / kinds.copies)

    def _served(self) -> Floats:
        """Return the ranks that one loader serves."""
        tables = self.by_pool[0]
        if not tables.setting.software.broadcasts_data:
            return np.ones_like(tables.ranks)
        return np.asarray(tables.degrees.axes["tp"].astype(np.float64))

    def _loaders(self, kinds: StageKinds) -> Floats:
        """Return the loaders of ranks that begin the model: a stage, or both ends of two ways."""
        ranks = self.by_pool[0].ranks * np.minimum(kinds.copies, kinds.stages) / kinds.stages
        return np.asarray(ranks / self._served())

    def _times_s(self, kinds: StageKinds, *, micro_batches: Floats) -> tuple[Floats, Floats]:
        """Return the slowest part that is concurrent with the step, and what that waits for. [s]"""
        samples = micro_batches * self.by_pool[0].degrees.micro_batch
        everywhere = self._loaders(kinds)
        slowest, waited = np.zeros(len(samples)), np.zeros(len(samples))
        ranks, served = self.by_pool[0].ranks, self._served()
        stage = ranks / kinds.stages / served
        loads = [
            (contents.pools[:, 0] > 0) | ((contents.copies > 1) & (contents.pools[:, -1] > 0))
            for contents in kinds.helds
        ]
        loading = np.array(loads).T[:, kinds.pipeline]
        for tables, used in zip(self.by_pool, loading, strict=True):
            devices = float(tables.pool.node.devices)
            # Stages are neighbouring ranks; of small ones, both ends may lie on one node.
            near = np.where(ranks <= devices, everywhere, stage)
            parts = part_times_s(
                self.loader,
                tables.pool.node,
                samples,
                on_node=np.maximum(np.minimum(near, devices // served), 1.0),
                everywhere=everywhere,
                serves=served,
            )
            ahead, behind = split_times_s(self.loader, parts)
            slowest = np.where(used, np.maximum(slowest, ahead), slowest)
            waited = np.where(used, np.maximum(waited, behind), waited)
        return slowest, waited
