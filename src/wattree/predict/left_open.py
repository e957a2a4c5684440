"""What a job leaves open and memory and time decide: virtual stages, offload, recomputation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wattree.cost import Calibration, load_calibration
from wattree.errors import StrategyError
from wattree.graph import ModelGraph
from wattree.job import Job, naming
from wattree.job.usual import MICRO_BATCH, TRAITS, USUAL_STRATEGIES, in_words, ways
from wattree.lowering.model import check_recomputation, model_of
from wattree.lowering.offered import model_offer
from wattree.lowering.setting import Setting, stated_setting
from wattree.lowering.usual_model import with_batch
from wattree.strategy import Offload, StrategyOptions
from wattree.strategy.presets import strategy_of

if TYPE_CHECKING:
    from wattree.predict.recent_jobs import RecentJob

#: Share of memory that strategies leave free by default, in jobs, plans and studies: predictions
#: of peaks are off by 4 % in the mean (docs/accuracy.md).
DEFAULT_MARGIN = 0.05
#: A forward pass takes a third of a step: backward computes twice as much.
_FORWARD = 1 / 3


def setting_of(job: Job, calibration: Calibration, *, model: ModelGraph | None = None) -> Setting:
    """Return the inputs shared by all strategies of `job`, whose own strategy leaves nothing open.

    The one way from a job to its step: every command predicts, shows and writes this strategy.

    Args:
        model: The job's model graph, where it has been built before.

    Raises:
        WattreeError: As `stated_setting`; also for a job that generates, which has no single step.
    """
    setting = stated_setting(job, calibration, model=model)
    with naming(job):
        return _decided(setting)


def with_left_open(job: Job) -> Job:
    """Return a job whose strategy says what it left open, for what runs it."""
    if MICRO_BATCH in job.left_open:
        job = with_batch(job, model_of(job))
    if set(job.left_open) <= {TRAITS}:
        return job
    whole = setting_of(job, load_calibration()).job
    return replace(job, strategy=whole.strategy, traits=whole.traits, left_open=())


def _decided(setting: Setting) -> Setting:
    """Return a setting whose job says what it left to memory and time, and that it was assumed.

    Users tune until it runs: virtual stages are those of the fastest pipeline that fits, what does
    not fit waits in host memory where copies cost nothing, and else as little as possible is
    computed again, all by the closed form. Published runs fill the memory to the last per cent, so
    no margin is left free, and the job says so. Where nothing fits, the cheapest stays, and the
    result says by how much it does not fit.
    """
    job, options = setting.job, setting.job.strategy
    if not job.left_open or not isinstance(options, StrategyOptions):
        return setting
    if "recompute" in job.left_open and not _can_recompute(options, setting.model):
        # Of software of transformers, for a model that has none of their operators.
        options = options.changed(recompute="none")
        setting = replace(setting, job=replace(job, strategy=options))
    # Imported here: most jobs leave nothing open, and do without the closed form.
    from wattree.closed_form.expressible import is_expressible
    from wattree.predict.recent_jobs import recent

    if not is_expressible(options, job.cluster):
        return setting
    weighed = _Weighed(setting, recent(setting))
    if not weighed.is_open(options):
        return setting
    fitting = [
        weighed.best_stages(tried) for tried in weighed.candidates(options) if weighed.fits(tried)
    ]
    if not fitting:
        return setting
    best = min(fitting, key=weighed.step_s)
    return _assuming(setting, options, best, is_tight=not weighed.fits(best, DEFAULT_MARGIN))


@dataclass(slots=True)
class _Estimate:
    """Time and memory of one strategy. [s, B]"""

    step_s: float
    need_bytes: float
    capacity_bytes: float


class _Weighed:
    """Strategies of one job, weighed by the closed form."""

    def __init__(self, setting: Setting, asked: RecentJob) -> None:
        self.setting, self.asked = setting, asked
        self.usual = USUAL_STRATEGIES[setting.job.software]
        self.found: dict[StrategyOptions, _Estimate | None] = {}

    def is_open(self, options: StrategyOptions) -> bool:
        """Return whether there is anything to decide of a strategy."""
        job = self.setting.job
        return bool(ways(job.software, job.left_open)) or (
            self._may_interleave(options) if options.pp > 1 else self._may_offload(options)
        )

    def _may_interleave(self, options: StrategyOptions) -> bool:
        job = self.setting.job
        compiled = self.setting.software.compiled
        offer = model_offer(job.software, self.setting.model, job, compiled=compiled)
        turns = job.data.global_batch // (options.replicas * options.pipeline.micro_batch)
        if offer is not None and (
            not offer.has("schedule", "interleaved")
            or not offer.runs_pipelines("interleaved", options.pp, 2, turns)
        ):
            return False
        return "virtual_stages" in job.left_open and options.pp > 1 and self.usual.interleaves

    def _may_offload(self, options: StrategyOptions) -> bool:
        job = self.setting.job
        if "offload" not in job.left_open or options.pp > 1 or not self.usual.offloads:
            return False
        # Over PCIe it is for those who ask: NVIDIA's recipes have it on GB200 and GB300, and the
        # rate "limits offloading benefits" (docs.nvidia.com, Transformer Engine, CPU Offloading).
        return all(pool.node.device.has_coherent_link for pool in job.cluster.pools)

    def candidates(self, options: StrategyOptions) -> Iterator[StrategyOptions]:
        """Yield what users would try, in order."""
        job = self.setting.job
        open_ways = (options.memory.recompute, *ways(job.software, job.left_open))
        for number, way in enumerate(dict.fromkeys(open_ways)):
            tried = options.changed(recompute=way)
            yield tried
            if number == 0 and (waiting := self._offloaded(tried)):
                yield waiting

    def fits(self, options: StrategyOptions, margin: float = 0.0) -> bool:
        """Return whether the peak leaves a share of the device's memory free."""
        if options.traffic.offload.tiers:
            return True  # as much waits in host memory as has to
        found = self._estimate(options)
        return found is not None and found.need_bytes <= (1.0 - margin) * found.capacity_bytes

    def step_s(self, options: StrategyOptions) -> float:
        """Return the time of a step, infinite where it has no closed form. [s]

        What waits in host memory does so only where its copies hide.
        """
        found = self._estimate(options.changed(traffic=replace(options.traffic, offload=Offload())))
        return math.inf if found is None else found.step_s

    def best_stages(self, options: StrategyOptions) -> StrategyOptions:
        """Return the same with the virtual stages of the fastest pipeline that fits."""
        if not self._may_interleave(options) or (known := self._estimate(options)) is None:
            return options
        tried = [
            options.changed(schedule="interleaved", virtual_stages=count)
            for count in _divisions(self.setting.model.layers, options.pp)
        ]
        self._estimate_all(tried)
        best, best_s = options, known.step_s
        for each in tried:
            found = self._estimate(each)
            if found is not None and self.fits(each) and found.step_s < best_s:
                best, best_s = each, found.step_s
        return best

    def _offloaded(self, options: StrategyOptions) -> StrategyOptions | None:
        """Return the same with activations in host memory, where copies hide behind computing."""
        if not self._may_offload(options):
            return None
        kept, again = self._estimate(options), self._estimate(options.changed(recompute="full"))
        if kept is None or again is None:
            return None
        layers = max(self.setting.model.layers, 1)
        layer_bytes = (kept.need_bytes - again.need_bytes) / layers
        excess = kept.need_bytes - kept.capacity_bytes
        count = math.ceil(excess / layer_bytes) + 1 if layer_bytes > 0 else 0
        passes = options.replicas * options.pipeline.micro_batch
        layer_s = kept.step_s * passes / self.setting.job.data.global_batch / layers
        pools = self.setting.job.cluster.pools
        link = min(pool.node.device.host_link_bytes_per_s for pool in pools)
        if not 0 < count <= layers or layer_bytes / link > _FORWARD * layer_s:
            return None
        return options.changed(
            traffic=replace(options.traffic, offload=Offload(activations="host", layers=count))
        )

    def _estimate(self, options: StrategyOptions) -> _Estimate | None:
        """Return time and memory; None where the strategy cannot be or has no closed form."""
        if options not in self.found:
            self._estimate_all([options])
        return self.found[options]

    def _estimate_all(self, tried: Sequence[StrategyOptions]) -> None:
        """Find time and memory of strategies that differ in virtual stages alone."""
        self.found |= dict.fromkeys(tried)
        if not (possible := [each for each in tried if self._is_possible(each)]):
            return
        from wattree.closed_form.degrees import Degrees
        from wattree.closed_form.strategies import estimate

        job = self.setting.job
        degrees = Degrees.of(possible, job.data.global_batch)
        try:
            found = estimate(self.asked.setting, possible[0], degrees, shared=self.asked.shared)
        except StrategyError:  # of one of them; the others are still to choose from
            for options in possible if len(possible) > 1 else ():
                self._estimate_all([options])
            return
        for at, options in enumerate(possible):
            device = job.cluster.pools[int(found.pool[at])].node.device
            self.found[options] = _Estimate(
                step_s=float(found.step_time_s[at]),
                need_bytes=float(found.process_bytes[at]) * options.colocation.processes,
                capacity_bytes=device.memory_bytes,
            )

    def _is_possible(self, options: StrategyOptions) -> bool:
        """Return whether the model has such a strategy, and the strategy a closed form."""
        from wattree.closed_form.expressible import is_expressible

        job = self.setting.job
        known = is_expressible(options, job.cluster)
        if not (known and _can_recompute(options, self.setting.model)):
            return False
        try:
            strategy_of(options, model=self.setting.model, global_batch=job.data.global_batch)
        except StrategyError:
            return False
        return True


def _can_recompute(options: StrategyOptions, model: ModelGraph) -> bool:
    """Return whether the model has what a strategy recomputes."""
    try:
        check_recomputation(options, model)
    except StrategyError:
        return False
    return True


def _divisions(layers: int, stages: int) -> list[int]:
    """Return the virtual stages that cut layers evenly, embedding and loss counted or not."""
    return [
        count
        for count in range(2, layers // stages + 1)
        if layers % (stages * count) == 0 or (layers + 2) % (stages * count) == 0
    ]


def _assuming(
    setting: Setting, before: StrategyOptions, options: StrategyOptions, *, is_tight: bool
) -> Setting:
    """Return the setting of the job with what was decided.

    Args:
        is_tight: It nearly fills the memory.
    """
    job = setting.job
    said: dict[str, object] = {}
    open_ways = ways(job.software, job.left_open)
    if open_ways:
        said["recompute"] = options.memory.recompute
    if options.pipeline.virtual_stages != before.pipeline.virtual_stages:
        said["virtual_stages"] = options.pipeline.virtual_stages
    if options.traffic.offload.tiers:
        said["offload activations of layers"] = options.traffic.offload.layers
    why = f"the fastest usual setting of {job.software} that fits"
    if is_tight:
        why += f", with less than {100 * DEFAULT_MARGIN:g} % of the memory free"
    if open_ways and options.memory.recompute != open_ways[0]:
        why += f" (recompute {open_ways[0]} does not; to compare strategies, set it)"
    assumed = (*job.assumed, *in_words(said, why)) if said else job.assumed
    return replace(setting, job=replace(job, strategy=options, assumed=assumed, left_open=()))
