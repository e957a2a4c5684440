"""Costs of blocks and of their parameters, once for each combination of degrees."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from wattree.accounts.expansion import ExpandedTier
from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.axis_layout import inside, spanned, strides
from wattree.closed_form.block_memory import SplitMemory, split_memory
from wattree.closed_form.block_tables import (
    BlockTable,
    DeviceOfPool,
    PhaseTable,
    StorageTable,
    block_table,
    phase_table,
    storage_table,
)
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.places import StagePlace, node_counts, rates_of_few
from wattree.closed_form.table_cache import TableCache, distinct_columns
from wattree.cost.rates import Rates
from wattree.cost.update import update_traffic_bytes
from wattree.lowering.block import ModelProgram
from wattree.lowering.costs import BlockCosting, reads_narrow
from wattree.lowering.groups import Placement
from wattree.lowering.movement import bucket_bytes, parameter_bucket_bytes, resolved_overlap
from wattree.lowering.optimizer_state import optimizer_state_bytes, update_kinds
from wattree.lowering.overlap import Pipelining
from wattree.lowering.owners import tokens_of
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import BlockProgram, Scale
from wattree.lowering.setting import Setting
from wattree.lowering.spread import TokenLoad
from wattree.lowering.storage import block_storage
from wattree.strategy import AXES, TIME_SLICED, ExpertLoad, Offload, StrategyOptions


class BlockCostTable:
    """Costs of every program for every distinct degree, in one place.

    What one block costs depends on tp, cp, ep and the micro-batch alone; what its parameters
    take and move depends on all axes but pp. Both are evaluated once for each combination that
    occurs, which is far less often than strategies do, and looked up. Options differ in what few
    blocks see, so the tables of blocks are kept from one to the next.

    Attributes:
        blocks, storages: By program.
        block_of, storage_of: Column of each strategy in their arrays, `(n,)`.
        place, pool: The place, and its devices.
        ranks: Of each strategy, `(n,)`.
        slowdown: Of computation on so many nodes, `(n,)`.
        gathers_again: Backward gathers parameters that forward gathered.

    Any array of `BlockTable` and `StorageTable` is an attribute, stacked over programs.

    Args:
        beside: Places whose tables are read by the same columns, this one among them.
    """

    def __init__(
        self,
        setting: Setting,
        options: StrategyOptions,
        degrees: Degrees,
        program: ModelProgram,
        *,
        place: StagePlace,
        beside: Sequence[StagePlace] = (),
        spilled: Floats | None = None,
        saved_bytes: TableCache | None = None,
    ) -> None:
        self.setting, self.options, self.degrees = setting, options, degrees
        self.program, self.place, self._beside = program, place, tuple(beside) or (place,)
        colocation = options.colocation
        self.rates = setting.pool_rates[place.number].shared(
            colocation.processes, in_turn=colocation.sharing == TIME_SLICED
        )
        software, cluster = setting.software, setting.job.cluster
        self.pool = place.pool
        values = {axis: v.astype(np.float64) for axis, v in degrees.axes.items()}
        self.ranks = np.prod(list(values.values()), axis=0)
        tier = ExpandedTier.of(setting.job.cluster, options, spilled)
        self.state_bytes = optimizer_state_bytes(setting.job.optimizer, software)
        self.overlap = resolved_overlap(options, software)
        self.gathers_again = self.overlap.reshard_after_forward and setting.trains
        # Degrees determine neither the overflow nor the experts' load.
        if (
            saved_bytes is None
            or spilled is not None
            or tier.tier2_offload.tiers
            or options.expert_load
        ):
            saved_bytes = TableCache()
        same = id(setting), place.key, colocation, program.batch_axes, program.context_axes
        self.blocks = self._blocks(tier, saved_bytes, same)
        self.storages = self._storages(values, tier, saved_bytes, same)
        self._stacked: dict[str, Floats] = {}
        self.slowdown = 1.0 + self.rates.straggling * np.log2(node_counts(cluster, self.ranks))

    def _blocks(
        self, tier: ExpandedTier, saved_bytes: TableCache, same: tuple[Hashable, ...]
    ) -> list[BlockTable]:
        """Return the tables of blocks for distinct columns of degrees; all keys have `same`."""
        setting, program = self.setting, self.program
        whole = self.degrees.whole or self.degrees
        # Blocks: replicas beyond ep change nothing inside a block, so they count as 1 here, but for
        # norms whose statistics are those of all.
        synced = self.options.parallelism.sync_batch_norm
        within = tuple(axis for axis in AXES if axis != "pp") if synced else ("tp", "cp", "ep")
        stages = whole.axes["pp"].astype(np.float64)
        several = np.minimum(whole.micro_batches, 2 if setting.software.earlier_logit_bytes else 1)

        first, which = saved_bytes.of(
            (id(setting), within, self._among, "blocks", id(whole)),
            (setting, whole),
            lambda: distinct_columns(
                *(whole.axes[axis] for axis in within),
                whole.micro_batch,
                several,
                *(each for at in self._beside for each in at.columns(whole.axes, within)),
                *tier.distinguishing_columns(stages),
            ),
        )
        self.block_of = which if self.degrees.rows is None else which[self.degrees.rows]
        filled, cut, part = self._laid(whole.axes, within, first)
        rates = tier.rates(self.rates, program.model, first, stages)
        rates = rates_of_few(rates, self.pool.node, part)
        ones = np.ones(len(first))
        own = {axis: whole.axes[axis][first] * ones if axis in within else ones for axis in AXES}
        micro_batch = whole.micro_batch[first] * ones
        mesh = self.place.mesh(whole.axes, first)
        device = DeviceOfPool(setting=setting, rates=rates, behind=self.pool.node.host.behind)
        pipelining = Pipelining.of(rates, self.overlap)
        placement = self._placement(own, filled, mesh, cut)
        columns = np.stack(
            [*own.values(), *mesh.values(), micro_batch, several[first], filled, cut, part]
        )
        key = (*same, pipelining, columns.tobytes())
        costing = saved_bytes.of(
            (*key, "costing"),
            setting,
            lambda: self._costing(own, micro_batch, rates, placement, several[first] > 1),
        )

        def of_phase(phase: PhaseCosts) -> PhaseTable:
            make = partial(phase_table, phase, device, pipelining)
            return saved_bytes.of((*key, id(phase)), (setting, phase), make)

        return [
            saved_bytes.of(
                (
                    *key,
                    reads_narrow(p, setting.software),  # all that their parameters decide
                    *map(id, (p.forward, p.recomputation, p.backward, p.saved, p.boundary_tensors)),
                ),
                (setting, p),
                partial(_block, p, costing, of_phase),
            )
            for p in program.programs
        ]

    def _costing(
        self,
        values: Mapping[str, Floats],
        micro_batch: Floats,
        rates: Rates,
        placement: Placement,
        several: Flags,
    ) -> tuple[BlockCosting, BlockCosting]:
        """Return block costs on the busiest ranks, and on ranks on average."""
        setting, sequence = self.setting, self.setting.job.data.sequence_length
        scale = self.program.scale(values, micro_batch, sequence=sequence, several=several)
        if self.options.expert_load is None:
            alike = BlockCosting(scale, placement, rates, setting.software)
            return alike, alike
        # All wait for the busiest rank; energy is that of all ranks together.
        most, mean = (
            BlockCosting(each, placement, rates, setting.software)
            for each in _loaded(self.options.expert_load, scale, setting, self.program)
        )
        return most, mean

    def _storages(
        self,
        values: Mapping[str, Floats],
        tier: ExpandedTier,
        saved_bytes: TableCache,
        same: tuple[Hashable, ...],
    ) -> list[StorageTable]:
        """Return the tables of parameters in the same way; the micro-batch does not matter."""
        setting, program, axes = self.setting, self.program, [a for a in AXES if a != "pp"]
        first, self.storage_of = saved_bytes.of(
            (id(setting), self._among, "storages", id(self.degrees)),
            (setting, self.degrees),
            lambda: distinct_columns(
                *(values[axis] for axis in axes),
                *(each for at in self._beside for each in at.columns(values, axes)),
                *tier.distinguishing_columns(values["pp"]),
            ),
        )
        self.update_rates = tier.rates(self.rates, program.model, first, values["pp"])
        own = {axis: v[first] for axis, v in values.items()}
        own["pp"] = np.ones(len(first))
        sequence = setting.job.data.sequence_length
        scale = program.scale(own, np.ones(len(first)), sequence=sequence)
        mesh, laid = self.place.mesh(values, first), self._laid(values, axes, first)
        filled, cut, part = laid
        placement = self._placement(own, filled, mesh, cut)
        rates = rates_of_few(self.rates, self.pool.node, part)
        device = DeviceOfPool(setting=setting, rates=rates, behind=self.pool.node.host.behind)
        traffic = self.options.traffic
        self.bucket_bytes = bucket_bytes(traffic, setting.software, scale)
        self.parameter_bucket_bytes = parameter_bucket_bytes(traffic, setting.software, scale)
        buckets = traffic.gradient_bucket_bytes, traffic.parameter_bucket_bytes
        often = traffic.reduce_every_micro_batch, self.gathers_again, *buckets
        columns = np.stack([*own.values(), *mesh.values(), *laid])
        stored = (*same, often, columns.tobytes())
        return [
            saved_bytes.of(
                (*stored, id(p.parameters), id(p.cache)),
                (setting, p),
                partial(self._storage, p, scale, placement, device, tier.tier2_offload),
            )
            for p in program.programs
        ]

    @property
    def _among(self) -> tuple[Hashable, ...]:
        """The places whose tables have the same columns."""
        return tuple(each.key for each in self._beside)

    def _laid(
        self, values: Mapping[str, Floats | Integers], axes: Sequence[str], rows: Integers
    ) -> list[Floats]:
        """Return how full domains of some rows are, and what borders cut (`StagePlace`)."""
        found = self.place.filled(values), *self.place.cuts(values, axes)
        return [each[rows] for each in found]

    def _placement(
        self,
        values: Mapping[str, Floats],
        filled: Floats,
        mesh: Mapping[str, Floats],
        ranks: Floats,
    ) -> Placement:
        """Return the layout of axes; strides only if links are simulated (`filled` above 0)."""
        return Placement(
            inside=partial(inside, values, domain=self.pool.domain_devices, ranks=ranks),
            in_leaf=partial(inside, values, domain=self.place.leaf_devices, ranks=ranks),
            domains=partial(spanned, values, domain=self.pool.domain_devices, ranks=ranks),
            stride=strides(values) if filled.any() else {},
            filled=filled,
            mesh={axis: (mesh[axis], s) for axis, s in strides(mesh).items()} if mesh else {},
        )

    def __getattr__(self, name: str) -> Floats:
        """Return an array of all blocks, or of all their parameters."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._stacked:
            rows: Sequence[BlockTable | StorageTable] = self.blocks
            if not hasattr(rows[0], name):
                rows = self.storages
            parts = [getattr(row, name) for row in rows]
            self._stacked[name] = (
                np.concatenate(parts) if name == "boundary_bytes" else np.array(parts)
            )
        return self._stacked[name]

    @property
    def block_j(self) -> Floats:
        """Energy above rest of a micro-batch through each block. [J]"""
        return self.forward_j + self.backward_j

    @property
    def block_moved(self) -> Floats:
        """Time of a micro-batch's collectives in each block. [s]"""
        return self.forward_moved + self.backward_moved

    @property
    def again(self) -> Floats:
        """Time of the gathers of each block before its backward, if it has one. [s]"""
        return self._works_back * self.gather

    @property
    def copied_again(self) -> Floats:
        """Time of the copies after these. [s]"""
        return self._works_back * self.copied_out

    @property
    def _works_back(self) -> Floats:
        """1 for blocks whose parameters are gathered again, else 0: of frozen ones ahead of all.

        Shape `(programs, 1)`.
        """
        works = [self.gathers_again and bool(p.backward) for p in self.program.programs]
        return np.array(works, dtype=np.float64)[:, None]

    @property
    def moved(self) -> Floats:
        """Time of all traffic between replicas of each block, each of it once. [s]"""
        return self.gather + self.every + self.once + self.update

    def split_memory(self) -> list[SplitMemory]:
        """Return the memory of each block whose backward is run in two pieces."""
        return [split_memory(block.costs) for block in self.blocks]

    def update_bytes(self, elements: Floats, wider_state: Floats | float = 0.0) -> Floats:
        """Return the memory traffic of the updates of a device. [B]"""
        processes = self.options.colocation.processes
        return update_traffic_bytes(
            elements,
            self.state_bytes,
            self.setting.software,
            processes=processes,
            wider_state=wider_state,
        )

    def _storage(
        self,
        program: BlockProgram,
        scale: Scale,
        placement: Placement,
        device: DeviceOfPool,
        tier2_offload: Offload,
    ) -> StorageTable:
        """Return the table of a block's parameters."""
        colocation, job = self.options.colocation, self.setting.job
        storage = block_storage(
            program,
            scale,
            self.setting.software,
            update_kinds(job.optimizer, self.setting.software),
            reduce_every_micro_batch=self.options.traffic.reduce_every_micro_batch,
            samples=float(colocation.process_batch(job.data.global_batch)),
            offload=tier2_offload,
            reshards=self.options.traffic.reshard_after_forward,
        )
        return storage_table(
            storage,
            scale,
            placement,
            device,
            update_rates=self.update_rates,
            state_bytes=self.state_bytes,
            processes=colocation.processes,
            gathers=1 + self.gathers_again,
            buckets_bytes=(self.bucket_bytes, self.parameter_bucket_bytes),
            tier2_offload=tier2_offload,
        )


def _block(
    program: BlockProgram,
    costing: tuple[BlockCosting, BlockCosting],
    of_phase: Callable[[PhaseCosts], PhaseTable],
) -> BlockTable:
    most, mean = (each.of(program) for each in costing)
    return block_table(most, mean, of_phase)


def _loaded(
    load: ExpertLoad, scale: Scale, setting: Setting, program: ModelProgram
) -> tuple[Scale, Scale]:
    """Return the scale with the tokens of the busiest rank, and with those of ranks on average."""
    dropless = setting.software.moe_dropless
    most, mean = tokens_of(load, program, scale.degrees, dropless=dropless)

    def with_tokens(tokens: Floats) -> Scale:
        own = np.arange(len(tokens))
        loaded = TokenLoad(tokens=tokens, ports=tokens, busiest=most, leader=own)
        return replace(scale, load=loaded, _cache={})

    return with_tokens(most), with_tokens(mean)
