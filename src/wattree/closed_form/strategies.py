"""Step time and memory in closed form, for arrays of strategies at once.

The same block programs and cost functions as the executor's; only the execution of a whole step is
replaced by formulas: streams of a block in order, the slowest stage times the micro-batches
plus the pipeline's filling, traffic of replicas against the compute that hides it. Screens
spaces too large to simulate and serves as the smooth model that calibration linearizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from wattree.accounts.expansion import spilled_share, tier_capacity
from wattree.accounts.overhead import groups_bytes, process_bytes
from wattree.arrays import Flags, Floats, Integers
from wattree.closed_form.cost_table import BlockCostTable
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.pipeline import StageContents, stage_contents
from wattree.closed_form.places import StagePlace, cuts_some_stages, stage_places, stage_pools
from wattree.closed_form.stage_kinds import StageKinds
from wattree.closed_form.step_model import StepModel
from wattree.closed_form.table_cache import TableCache, distinct_columns
from wattree.cost import Software
from wattree.hardware import Cluster
from wattree.lowering.autograd import Autograd
from wattree.lowering.block import ModelProgram, compile_model
from wattree.lowering.changed import changed_model
from wattree.lowering.movement import resolved_traffic
from wattree.lowering.passes.shared_heads import fewest_heads
from wattree.lowering.setting import Setting
from wattree.strategy import CUSTOM, SCHEDULES, SPATIAL, Schedule, StrategyOptions, Traffic
from wattree.strategy.presets import schedule_of_chunks, tree_of
from wattree.strategy.presets.data import REPLICAS

#: Sets of options whose programs are kept; they share those of blocks.
_MOST_PROGRAMS = 4096
#: Arrays of degrees whose stages are kept: those are megabytes.
_MOST_KINDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Figures of a step, `(n,)` each.

    Attributes:
        step_time_s: Its length. [s]
        tensor_bytes: Peak of live tensors on the fullest rank. [B]
        process_bytes: The same with all that its process holds. [B]
        pool: Pool of its device.
        energy_j: Of the whole job, PUE included. [J]
        peak_power_w: Of the job's nodes, before PUE: highest mean over 1/256 of the step. [W]
        spilled: Share of what is on the devices that overflows to expanded memory.
        tier_fits: Whether what lies in expanded memory has room there.
    """

    step_time_s: Floats
    tensor_bytes: Floats
    process_bytes: Floats
    pool: Integers
    energy_j: Floats
    peak_power_w: Floats
    spilled: Floats
    tier_fits: Flags


def estimate(
    setting: Setting,
    options: StrategyOptions,
    degrees: Degrees | None = None,
    *,
    shared: Shared | None = None,
) -> Estimates:
    """Return estimates for strategies that share `options` and differ in `degrees`.

    Args:
        setting: The job.
        options: Sharding, recomputation, sequence parallelism, schedule, overlap; its own
            degrees are ignored if others are given.
        degrees: Arrays of degrees; those of `options` alone if None.
        shared: Cached values of earlier calls; the same programs are not compiled again.
    """
    if degrees is None:
        degrees = Degrees.of([options], setting.job.data.global_batch)
    return screened(setting, options, degrees, shared=shared).estimates(setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Cached values that estimates of one job and model share.

    Attributes:
        programs: Switches and axes → block programs.
        contents: Instances, stages, schedule, ranks → what stages hold.
        kinds: Degrees by their id, instances, given cut → these degrees, and what the stages of all
            of them hold.
        parts: Degrees by their id, whether in pipelines → these degrees, and those that are.
        steps: Of a job that generates: the same of each of its steps, by length of the cache.
    """

    programs: dict[tuple[StrategyOptions, frozenset[str], Autograd], ModelProgram] = field(
        default_factory=dict
    )
    contents: dict[tuple[object, ...], StageContents] = field(default_factory=dict)
    kinds: dict[tuple[object, ...], tuple[Degrees, StageKinds]] = field(default_factory=dict)
    parts: dict[tuple[int, bool], tuple[Degrees, Degrees]] = field(default_factory=dict)
    tables: TableCache = field(default_factory=TableCache)
    steps: dict[float | None, Shared] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Strategies whose blocks are compiled, to be estimated under one or more calibrations.

    Attributes:
        degrees: What they differ in.
        shared: What was compiled before.
    """

    options: StrategyOptions
    degrees: Degrees
    program: ModelProgram
    shared: Shared

    def estimates(self, setting: Setting) -> Estimates:
        """Return step times and memory under the rates of `setting`."""
        setting = setting.under(self.options)
        piped = self.degrees.axes["pp"] > 1
        alone, behind = (self._piped(setting.software, piped, each) for each in (False, True))
        if alone.options == behind.options or piped.all():
            return replace(self, options=behind.options).alike_estimates(setting)
        if not piped.any():
            return self.alike_estimates(setting)
        found = [each.alike_estimates(setting) for each in (alone, behind)]
        order = np.argsort(np.argsort(piped, kind="stable"))
        names = [each.name for each in fields(Estimates)]
        return Estimates(
            **{n: np.concatenate([getattr(part, n) for part in found])[order] for n in names}
        )

    def _piped(self, software: Software, piped: Flags, which: bool) -> Screened:  # noqa: FBT001
        """Return those in pipelines, or those without, as their software moves gradients."""
        sharded = which and self.program.shards_gradients
        traffic = resolved_traffic(self.options.traffic, software, pipelined=sharded)
        known, key = self.shared.parts, (id(self.degrees), which)
        if key not in known:
            if len(known) >= _MOST_KINDS:
                known.clear()
            known[key] = self.degrees, self.degrees.take(np.flatnonzero(piped == which))
        options = self.options.changed(traffic=traffic)
        return replace(self, options=options, degrees=known[key][1])

    def alike_estimates(self, setting: Setting) -> Estimates:
        """Return the same of strategies that all move gradients as `options` say."""
        found = self.under_spill(setting, None)
        over = np.flatnonzero((found.spilled > 0) & found.tier_fits)
        if not len(over):
            return found
        # What overflows is known now, and with it how slow memory is.
        own = replace(self, degrees=self.degrees.take(over))
        slower = own.under_spill(setting, found.spilled[over])
        for name in ("step_time_s", "energy_j", "peak_power_w"):
            getattr(found, name)[over] = getattr(slower, name)
        return found

    def under_spill(self, setting: Setting, spilled: Floats | None) -> Estimates:
        """Return estimates with a share of device data in expanded memory.

        None means no overflow; the share that would have to overflow is returned anyway.
        """
        degrees, cluster = self.degrees, setting.job.cluster
        cut = cuts_some_stages(cluster, degrees)
        places = [
            StagePlace.of(setting, pool, is_whole=is_whole)
            for is_whole in ((False, True) if cut.any() else (False,))
            for pool in range(len(cluster.pools))
        ]
        tables = [
            BlockCostTable(
                setting,
                self.options,
                degrees,
                self.program,
                place=place,
                beside=places,
                spilled=spilled,
                saved_bytes=self.shared.tables,
            )
            for place in places
        ]
        screen = StepModel(tables, self._kinds(cluster, tables[0].ranks, cut))
        timed = screen.timed()
        time_s, dynamic_j = timed.step, screen.energy.dynamic_j(timed)
        memory, over = np.zeros_like(time_s), np.zeros_like(time_s)
        pools, capacity = np.zeros(len(time_s), dtype=np.int64), np.ones(len(time_s), dtype=bool)
        if spilled is None:  # what is held where depends on no bandwidth, and is known
            tensors = screen.memory.tensor_bytes()
            memory, pools = screen.memory.fullest(tensors)
            if self.options.traffic.offload.tiers:
                over, capacity = _overflow(setting, screen, tensors)
        return Estimates(
            step_time_s=time_s,
            tensor_bytes=memory,
            process_bytes=_process_bytes(setting, degrees, memory, pools),
            pool=pools,
            energy_j=screen.energy.energy_j(time_s, dynamic_j),
            peak_power_w=screen.energy.peak_power_w(timed, dynamic_j),
            spilled=over,
            tier_fits=capacity,
        )

    def _kinds(self, cluster: Cluster, ranks: Floats, cut: Flags) -> StageKinds:
        """Return the contents of the stages of all strategies.

        Args:
            ranks: Of each strategy.
            cut: Where borders of domains cut some stages.
        """
        if cluster.is_mixed:  # they depend on the pools too
            return self._distinct_kinds(cluster, ranks, cut)
        known, layers = self.shared.kinds, self.options.pipeline.stage_layers
        key = id(self.degrees), self.program.instances, layers
        if key not in known:
            if len(known) >= _MOST_KINDS:
                known.clear()
            known[key] = self.degrees, self._distinct_kinds(cluster, ranks * cut, cut)
        return known[key][1]

    def _distinct_kinds(self, cluster: Cluster, ranks: Floats, cut: Flags) -> StageKinds:
        """Return the same; where stages lie does not matter for 0 ranks."""
        degrees = self.degrees
        columns = degrees.axes["pp"], degrees.virtual_stages, degrees.schedule
        first, pipeline = distinct_columns(*columns, *((ranks,) if ranks.any() else ()))
        both = bool(cut.any())
        held = [self._held(at, cluster, int(ranks[at]), both=both) for at in first.tolist()]
        return StageKinds(held, pipeline)

    def _held(self, at: int, cluster: Cluster, ranks: int, *, both: bool) -> StageContents:
        """Return the contents of the stages of one strategy, and their devices.

        Args:
            ranks: Those of the strategy if it matters where they lie, else 0.
            both: Whether stages that borders of domains cut are told from others.
        """
        degrees = self.degrees
        stages, virtual = int(degrees.axes["pp"][at]), int(degrees.virtual_stages[at])
        name = SCHEDULES[degrees.schedule[at]]
        schedule = Schedule(
            # A user's own order counts as 1F1B.
            name=schedule_of_chunks("1f1b" if name == CUSTOM else name, virtual),
            virtual_stages=virtual,
            stage_layers=self.options.pipeline.stage_layers,
        )
        key = self.program.instances, stages, schedule, ranks, both
        contents = self.shared.contents.get(key)
        if contents is None:
            pools = np.eye(1 + both)[:1].T * np.ones(stages)
            if ranks:
                pools = (stage_places if both else stage_pools)(cluster, ranks, stages)
            contents = stage_contents(self.program, stages, schedule, pools=pools)
            self.shared.contents[key] = contents
        return contents


def _process_bytes(setting: Setting, degrees: Degrees, tensors: Floats, pools: Integers) -> Floats:
    """Return the driver's memory figure of the fullest rank of each strategy. [B]"""
    needs = []
    for pool in setting.job.cluster.pools:
        groups = groups_bytes(degrees.axes, pool.node, setting)
        needs.append(process_bytes(tensors, setting, pool.node.device, groups))
    return np.choose(pools, needs)


def _overflow(setting: Setting, screen: StepModel, tensors: Floats) -> tuple[Floats, Flags]:
    """Return the overflowing share of device memory, and whether the tier has the capacity.

    `tensors` are the live ones of each kind of stage, `(rows,)`. [B]
    """
    cluster, kinds = setting.job.cluster, screen.kinds
    node, offload = cluster.node, screen.tables.options.traffic.offload
    footprint = screen.memory.process_bytes(tensors, node)
    over = spilled_share(kinds.most(footprint), node.device.memory_bytes, offload)
    if "cxl" not in offload.tiers:
        return over, np.ones(len(over), dtype=bool)
    used = screen.memory.placed_bytes() + over[kinds.strategy] * footprint
    capacity, whose = tier_capacity(node, "cxl")
    ranks = screen.tables.ranks
    if whose == "pool":
        taken = kinds.over_stages(used) * ranks / kinds.stages
    else:
        sharing = 1.0 if whose == "device" else np.minimum(ranks, float(node.devices))
        taken = kinds.most(used) * sharing
    return over, np.asarray(taken <= capacity)


def screened(
    setting: Setting,
    options: StrategyOptions,
    degrees: Degrees,
    *,
    shared: Shared | None = None,
) -> Screened:
    """Return strategies prepared for estimates; arguments as for `estimate`.

    Args:
        shared: Kept from call to call, it saves compiling again what only degrees change.
    """
    shared = shared or Shared()
    active = degrees.active
    # Neither schedules nor degrees (above 1) change a tree, nor does how data moves.
    wide = _wide(options, degrees).changed(traffic=Traffic())
    # Neither do processes on each device, which are all alike.
    has_own = wide.phantoms.enabled or wide.tp > fewest_heads(setting.model)
    if not has_own:
        wide = wide.changed(tp=2 if "tp" in active else 1)
    autograd = Autograd.of(setting.under(options).software, options)
    key = wide.changed(schedule="1f1b", processes_per_device=1), active, autograd
    if len(shared.programs) > _MOST_PROGRAMS:
        shared.programs.clear()
    if key not in shared.programs:
        tree = tree_of(wide, setting.model)
        # Of others than phantom layers and copied heads, even degrees alone are screened.
        degrees_of_parts = {"tp": wide.tp} if has_own else {}
        model, tree = changed_model(setting.model, tree, degrees_of_parts)
        shared.programs[key] = compile_model(model, tree, active, autograd=autograd)
    return Screened(options=options, degrees=degrees, program=shared.programs[key], shared=shared)


def _wide(options: StrategyOptions, degrees: Degrees) -> StrategyOptions:
    """Return the options with a tensor degree above 1, so that the tree has its splits.

    Under spatial parallelism the degree of `cp` says which layers are split, the number of replicas
    says which fully connected layers and tables are, and phantom layers have a block for each rank.
    """
    own: dict[str, Any] = {"tp": int(degrees.axes["tp"].max())}
    axes = (("cp",) if options.parallelism.context == SPATIAL else ()) + (
        REPLICAS if options.parallelism.op_shard or options.parallelism.tables == "auto" else ()
    )
    axes = (*axes, "tp") if options.phantoms.enabled else axes
    for axis in axes:
        own[axis] = int(degrees.axes[axis].max())
        assert (degrees.axes[axis] == own[axis]).all(), "such trees differ with the degree"
    return options.changed(**own, virtual_stages=1, stage_layers=None)
