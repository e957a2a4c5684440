"""Peak memory of the ranks of each kind of stage, from the memory of their blocks."""

from __future__ import annotations

from itertools import product

import numpy as np

from wattree.accounts.overhead import groups_bytes, process_bytes
from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.inputs import Inputs
from wattree.closed_form.pipeline import SPLIT
from wattree.closed_form.split_memory import split_live_bytes
from wattree.closed_form.stage_sums import StageSums
from wattree.hardware import Node
from wattree.lowering.optimizer_state import update_working_bytes
from wattree.lowering.storage import buffer_bytes, postponed_bytes


class StageMemory:
    """Peaks of memory.

    Args:
        sums: Of tables, by kind of stage.
    """

    def __init__(self, sums: StageSums, inputs: Inputs) -> None:
        self._sums, self._inputs = sums, inputs
        self.by_pool, self.kinds = sums.by_pool, sums.kinds
        self.tables = sums.by_pool[0]  # what depends on no device
        self._overlap = self.tables.overlap

    def tensor_bytes(self) -> Floats:
        """Return the peak of live tensors of each kind of stage, `(rows,)`. [B]"""
        kinds, live = self.kinds, np.zeros(len(self._sums.block))
        if not kinds.is_split.all():
            live = self._passing_bytes()
        if kinds.is_split.any():
            live = np.where(kinds.is_split[kinds.strategy], self._split_bytes(), live)
        if not self._overlap.reshard_after_forward:
            live = live + self._sums.of_storage("gathered")
        software, updated = self.tables.setting.software, self._sums.of_storage("updated")
        if not (traffic := self.tables.options.traffic).overlap_optimizer:
            working = update_working_bytes(self.tables.setting.job.optimizer, software)
            live = np.maximum(live, self._sums.of_storage("passing") + working * updated)
        alone = buffer_bytes(self._sums.of_storage("sharded"), updated, software)
        if traffic.offload.optimizer is None:
            is_gathered = self._sums.of_storage("gathered") > 0
            alone = alone - np.where(is_gathered, postponed_bytes(updated, software), 0.0)
        inputs = self._inputs.device_bytes(kinds)
        held = self._sums.of_storage("static") + self._placeholder_bytes()
        return np.asarray(held + (live + alone) + inputs)

    def _placeholder_bytes(self) -> Floats:
        """Return the tensors kept for gradients, one for each shape of weights, `(rows,)`. [B]"""
        counts, found = self.kinds.counts, np.zeros(len(self._sums.storage))
        sizes = {key: size for each in self.tables.storages for key, size in each.weights.items()}
        for key, size in sizes.items():
            own = [key in each.weights for each in self.tables.storages]
            has_one = np.asarray(counts[:, own].any(axis=1))
            found = found + has_one[self.kinds.kind] * size[self._sums.storage]
        return found

    def placed_bytes(self) -> Floats:
        """Return the bytes of each kind of stage in expanded memory by class, `(rows,)`. [B]"""
        kinds, placed = self.kinds, self._sums.of_storage("tier2_static")
        if "tier2_saved" in self._sums.nothing:
            return np.asarray(placed)
        live = kinds.in_flight(self.tables.degrees.micro_batches)
        for saved_bytes, count in zip(
            kinds.saved_bytes(self.tables.tier2_saved), live, strict=True
        ):
            placed = placed + self._sums.block_rows(saved_bytes) * count
        return np.asarray(placed)

    def process_bytes(self, tensors: Floats, node: Node) -> Floats:
        """Return the driver's memory figure of each kind of stage, `(rows,)`. [B]"""
        kinds, setting = self.kinds, self.tables.setting
        groups = groups_bytes(self.tables.degrees.axes, node, setting)
        own = np.broadcast_to(groups, kinds.pipeline.shape)[kinds.strategy]
        return process_bytes(tensors, setting, node.device, own)

    def fullest(self, tensors: Floats) -> tuple[Floats, Integers]:
        """Return the live tensors of the fullest rank, and the pool of its device, `(n,)`. [B]

        Args:
            tensors: Of each kind of stage, as `tensor_bytes` returns them. [B]
        """
        kinds = self.kinds
        if not self.tables.setting.job.cluster.is_mixed:
            return kinds.most(tensors), np.zeros(len(kinds.pipeline), dtype=np.int64)
        needs = []
        for tables, share in zip(self.by_pool, kinds.shares, strict=True):
            node = tables.pool.node
            need = self.process_bytes(tensors, node) / node.device.memory_bytes
            needs.append(np.where(share[kinds.kind] > 0, need, -np.inf))
        pool = np.argmax([kinds.most(need) for need in needs], axis=0)
        need = np.choose(pool[kinds.strategy], needs)
        row = kinds.first_row(need == kinds.most(need)[kinds.strategy])
        return tensors[row], np.array([each.place.number for each in self.by_pool])[pool]

    def _passing_bytes(self) -> Floats:
        """Return the peak of what comes and goes in a step, `(rows,)`. [B]

        Gradients that come with backward are there from its first one on, if forwards follow: of
        interleaved stages with a single round those of the last chunk. Where all forwards come
        first, the peak is as the first backward begins or goes on (gradients come as activations
        go, so between its ends there is no more), or as the second begins.
        """
        parts, alone = self._saved_parts(), self._most_needed(self.tables.backward_moment)
        working = np.maximum(alone, self._most_needed(self._forward_moment(), forward=True))
        saved = sum(parts, np.zeros(len(self._sums.block)))
        if "passing" in self._sums.nothing:
            return saved + working
        kinds, micro_batches = self.kinds, self.tables.degrees.micro_batches
        of_chunks = kinds.saved_bytes(self.tables.passing)
        first, between, last = map(self._sums.storage_rows, of_chunks)
        total = first + between + last
        several = micro_batches[kinds.strategy].astype(np.float64)
        left = 1.0 - 1.0 / several  # of what a chunk keeps, when its second backward begins
        second = np.where(several > 1, parts[0] + parts[1] + left * parts[2] + last + alone, 0.0)
        ends = np.maximum(parts[0] + between + last, left * parts[0] + total) + alone
        chunked = kinds.virtual[kinds.strategy] > 1
        ends = np.where(chunked, ends, total)
        most = np.maximum(saved + self._growing_bytes(), np.maximum(second, ends))
        single = chunked & (several < 2 * kinds.stages[kinds.strategy])
        early = np.where(single, last, total)
        later = np.where(single, ends, 0.0)
        follow = np.maximum(saved + working + early, later)
        return np.where(kinds.goes_forward_first(micro_batches), most, follow)

    def _saved_parts(self) -> list[Floats]:
        """Return the peak of tensors saved by the parts of each kind of stage, `(rows,)`. [B]"""
        kinds, live = self.kinds, self.kinds.in_flight(self.tables.degrees.micro_batches)
        saved = kinds.saved_bytes(self.tables.saved_bytes, self.tables.boundary_bytes)
        return [
            # A stage with one chunk has only a last one.
            self._sums.block_rows(each) * count if count.any() else 0.0 * count
            for each, count in zip(saved, live, strict=True)
        ]

    def _split_bytes(self) -> Floats:
        """Return activations and gathered parameters with deferred weight gradients. [B]"""
        kinds, tables = self.kinds, self.tables
        live, pieces = np.zeros(len(self._sums.block)), tables.split_memory()
        interleaved = self.takes_turns()
        for pipeline, contents in enumerate(kinds.helds):
            own, rows = kinds.rows(pipeline)
            if contents.schedule not in SPLIT or not len(own):
                continue
            live[rows] = split_live_bytes(
                contents,
                pieces,
                saved_bytes=tables.saved_bytes,
                boundary_bytes=tables.boundary_bytes,
                micro_batches=tables.degrees.micro_batches[own],
                block=tables.block_of[own],
                passing=tables.passing,
                storage=tables.storage_of[own],
                interleaved=interleaved[own],
            )
        if self._overlap.gathered_copies and "gathered" not in self._sums.nothing:
            programs = range(kinds.counts.shape[1])
            gathered = [
                np.where((kinds.counts[:, each] > 0)[kinds.kind], self._gathered(each, own), 0.0)
                for each, own in product(programs, (False, True))
            ]
            live = live + np.max(gathered, axis=0)
        return live

    def takes_turns(self) -> Flags:
        """Return whether a forward and a backward side by side switch at their traffic, `(n,)`."""
        axes, in_line = self.tables.degrees.axes, self._overlap.in_line
        found = np.zeros(len(self.kinds.pipeline), dtype=bool)
        for kind, axis in (("tensor", "tp"), ("context", "cp"), ("experts", "ep")):
            if kind not in in_line:
                found |= axes[axis] > 1
        if "parameters" not in in_line:
            found |= self.kinds.most(self._sums.of_storage("gathered")) > 0
        return found

    @property
    def _is_single(self) -> Flags:
        """Whether there is a single micro-batch, `(rows,)`."""
        return (self.tables.degrees.micro_batches <= self.kinds.copies)[self.kinds.strategy]

    def _gathered(self, program: int, forward: bool) -> Floats:  # noqa: FBT001 - which pass
        """Return the parameters that are gathered while a block runs forward or backward. [B]

        Its own, and those of the next block; of several, the largest. `(rows,)`.
        """
        copies, gathered = self._overlap.gathered_copies, self.tables.gathered
        kinds, storage = self.kinds, self._sums.storage
        own = gathered[program][storage]
        if copies > 1:
            ahead, several, single = (
                np.where(each[:, program, :, None], gathered, 0.0).max(axis=1)
                for each in kinds.next_blocks
            )
            following = self._sums.storage_rows(ahead if forward else several)
            if not forward and (is_single := self._is_single).any():
                following = np.where(is_single, self._sums.storage_rows(single), following)
            own = own + following
        if copies > 2:  # those farther ahead are of the blocks that there are most of
            common = kinds.counts.argmax(axis=1)[kinds.kind]
            own = own + (copies - 2) * gathered[common, storage]
        return np.asarray(own)

    def _forward_moment(self) -> Floats:
        """Return what forward needs of each program beyond what is saved. [B]

        Shape `(programs, distinct)`, or `(kinds, programs, distinct)` where a cache grows with each
        block until the forward pass of the last chunk ends.
        """
        moment, cached = self.tables.forward_moment, self.tables.cached_bytes
        if not cached.any():
            return moment
        all_of_kind = (self.kinds.last @ cached)[:, None, :]
        return np.asarray(moment + all_of_kind - self.kinds.later @ cached)

    def _growing_bytes(self) -> Floats:
        """Return what the first passes need, backward with the gradients that it has made. [B]"""
        kinds, tables = self.kinds, self.tables
        most = self._most_needed(self._forward_moment(), forward=True)
        for later in (kinds.later, kinds.behind):
            passing = later @ tables.passing
            most = np.maximum(most, self._most_needed(tables.backward_moment, later, passing))
        return most

    def _most_needed(
        self,
        moment: Floats,
        later: Floats | None = None,
        passing: Floats | None = None,
        *,
        forward: bool = False,
    ) -> Floats:
        """Return the most that a block of each kind of stage needs beyond what is saved. [B]

        Args:
            moment: Of each program, beyond what it keeps, `(programs, distinct)`, or by kind.
            later: What follows it, and has been dropped; None: as at its last instance.
            passing: What has come in its place, `(kinds, programs, distinct)`.
            forward: The moment is one of forward, else of backward.
        """
        kinds, tables = self.kinds, self.tables
        later = kinds.later if later is None else later
        need = moment - later @ tables.saved_bytes  # `(kinds, programs, distinct)`
        need = np.where((kinds.counts > 0)[:, :, None], need, -np.inf)
        copies, stages_gradients = self._overlap.gathered_copies, self._overlap.hides_gradients
        gathers = bool(copies) and "gathered" not in self._sums.nothing
        stages_gradients = stages_gradients and "staged" not in self._sums.nothing
        if not gathers and not stages_gradients and passing is None:
            return self._sums.block_rows(need.max(axis=1))
        working = np.full(len(self._sums.block), -np.inf)
        for program in range(need.shape[1]):
            own = self._sums.block_rows(need[:, program])
            if passing is not None:
                own = own + self._sums.storage_rows(passing[:, program])
            if gathers:
                own = own + self._gathered(program, forward)
            if stages_gradients:  # also in the forward of another micro-batch
                staged = self._sums.storage_rows(self._staged(program))
                staged = own + np.where(self._is_single & forward, 0.0, staged)
                own = np.maximum(staged, self._reduced(program, later))
            working = np.maximum(working, own)
        return working

    def _reduced(self, program: int, later: Floats) -> Floats:
        """Return what is under reduction when a program's backward has ended, `(rows,)`. [B]"""
        kinds, saved = self.kinds, self.tables.saved_bytes
        dropped = later[:, program] @ saved + saved[program]
        staged = self.tables.staged[program][self._sums.storage]
        here = (kinds.counts[:, program] > 0)[kinds.kind]
        return np.where(here, staged - self._sums.block_rows(dropped), -np.inf)

    def _staged(self, program: int) -> Floats:
        """Return the gradients under reduction at a program's backward, `(kinds, distinct)`.

        They are of what went backward before it.
        """
        later = self.kinds.later[:, program] > 0
        found = np.zeros((len(later), self.tables.staged.shape[1]))
        for before, staged in zip(later.T, self.tables.staged, strict=True):
            found = np.maximum(found, np.where(before[:, None], staged, 0.0))
        return found
