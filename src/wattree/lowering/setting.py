"""The inputs shared by all strategies of a job: model, software, rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from wattree.capture import lacks_sequence
from wattree.cost import PRECISIONS, Calibration, Software, matrix_precision
from wattree.cost.convolution_rates import convolution_precision
from wattree.cost.device_power import pool_power
from wattree.cost.rates import Rates, pool_rates
from wattree.energy import DevicePower
from wattree.errors import CostError, JobError, UnknownNameError
from wattree.graph import ModelGraph, OperatorKind
from wattree.hardware import Device, Precision
from wattree.job import Job, WorkloadKind
from wattree.lowering.assumed import (
    with_convolutions,
    with_matrix_updates,
    with_release,
    with_scores,
    with_sizes,
    with_widths,
)
from wattree.lowering.idle import foreign_format, has_experts, idle_precision, idle_release
from wattree.lowering.legality import check_domains
from wattree.lowering.model import model_of
from wattree.lowering.offered import unoffered
from wattree.lowering.software import (
    compiled_by,
    software_of,
    traits_of_engine,
    without_stated,
)
from wattree.lowering.table_updates import refused_updates, with_table_updates
from wattree.lowering.usual_model import assuming, with_batch, with_usual_settings
from wattree.lowering.workload import (
    NO_STEP,
    DecodeLength,
    GenerationPhase,
    with_inference_software,
    with_split_experts,
    workload_model,
)
from wattree.strategy import Strategy, StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The inputs that are the same for every strategy of a job.

    Attributes:
        software: Its software's defaults, overrides applied.
        precision: Number format of matrix work.
        pool_rates: What the devices of each pool reach.
        engine_traits: What its software does under the strategy's engine, of several that it has.
        decode: Of all of generation, whose first step this is: the settings of a decode step, by
            length of the cache; None of a single step.
    """

    job: Job
    model: ModelGraph
    software: Software
    precision: Precision
    calibration: Calibration
    pool_rates: tuple[Rates, ...]
    engine_traits: Mapping[str, Any] = field(default_factory=dict)
    decode: tuple[tuple[DecodeLength, Setting], ...] | None = None
    _known: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    _others: dict[str, Setting] = field(
        default_factory=dict, init=False, repr=False, compare=False, hash=False
    )

    @property
    def peak_precision(self) -> Precision:
        """Format whose matrix peak MFU is of: that of convolutions, if there are more of them."""
        device = self.job.cluster.pools[0].node.device
        return _peak_precision(self.model, device, self.precision, self.software)

    def under(self, strategy: object) -> Setting:
        """Return the setting of a strategy of the job, where its engine differs from this one's."""
        traits = traits_of_engine(self.job, strategy)
        if not isinstance(strategy, StrategyOptions) or traits == self.engine_traits:
            return self
        if (key := str(traits)) not in self._others:
            software = software_of(self.job, self.model, traits)
            software = compiled_by(self.model, software, self.job.source)[1]
            rates = _rates(self.job, self.model, software, self.precision, self.calibration)
            self._others[key] = replace(
                self, software=software, pool_rates=rates, engine_traits=traits
            )
        return self._others[key]

    def of_batches(self, times: int) -> Setting:
        """Return the same of `times` as many samples, those of each micro-batch unchanged."""
        data = replace(self.job.data, global_batch=times * self.job.data.global_batch)
        return replace(self, job=replace(self.job, data=data), _known={})

    @property
    def rates(self) -> Rates:
        """The rates of its devices, if all are equal.

        Raises:
            HardwareError: Pools differ.
        """
        only = self.job.cluster.pool
        return self.pool_rates[self.job.cluster.pools.index(only)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings without effect, what the software lacks, and warnings of the model."""
        devices = {pool.node.device.name: pool.node.device for pool in self.job.cluster.pools}
        foreign = (foreign_format(self.precision, device) for device in devices.values())
        return (
            *chain.from_iterable(foreign),
            *idle_precision(self.precision, self.model, self.job.cluster),
            *idle_release(self.job, self.software, self.precision),
            *unoffered(self.job, self.model, compiled=self.software.compiled),
            *refused_updates(self.job, self.model, self.software),
            *self.model.warnings,
        )

    @property
    def has_tokens(self) -> bool:
        """Whether samples are sequences, so that tokens can be counted."""
        return self.job.data.has_sequence and not lacks_sequence(self.model)

    @property
    def has_staging(self) -> bool:
        """Whether samples are copied to the devices out of pageable memory."""
        loader = self.job.data.loader
        return loader is not None and not loader.pinned

    @property
    def has_experts(self) -> bool:
        """Whether the model has experts that ranks can share; looked up once."""
        if "experts" not in self._known:
            self._known["experts"] = float(has_experts(self.model))
        return bool(self._known["experts"])

    @property
    def trains(self) -> bool:
        """Whether any parameter is updated, so that there are backward passes; looked up once."""
        if "trains" not in self._known:
            self._known["trains"] = float(self.model.trainable_parameters > 0)
        return bool(self._known["trains"])

    @property
    def powers(self) -> tuple[DevicePower, ...]:
        """The power of the devices of each pool."""
        return tuple(rates.power for rates in self.pool_rates)

    def model_flop(self, strategy: Strategy | None = None) -> float:
        """Return the matrix FLOP that one step of the model needs; counted once. [FLOP]

        Args:
            strategy: Says how many samples pass at once; None for the job's own.
        """
        data, chosen = self.job.data, strategy or self.job.strategy
        batch = data.global_batch
        if isinstance(chosen, StrategyOptions):
            whole = chosen.parallelism.single_process  # sends all samples at once
            at_once = batch / chosen.replicas if whole else float(chosen.pipeline.micro_batch)
        elif isinstance(chosen, Strategy):
            at_once = chosen.micro_batch(chosen.colocation.process_batch(batch))
        else:
            at_once = batch  # still to be found
        if (key := f"flop of {at_once}") not in self._known:
            from wattree.lowering.work import model_flop  # it compiles blocks: `check` does not

            self._known[key] = model_flop(
                self.model,
                global_batch=batch,
                micro_batch=at_once,
                sequence=data.sequence_length,
            )
        return self._known[key]


def stated_setting(
    job: Job,
    calibration: Calibration,
    *,
    model: ModelGraph | None = None,
    phase: GenerationPhase | None = None,
) -> Setting:
    """Return the inputs shared by all strategies of `job`, with its software's usual settings.

    What memory and time decide is still open: `predict.setting_of` is for everything else.

    Args:
        model: The job's model graph, where it has been built before.
        phase: Part of a job that generates tokens, which has no single step.

    Raises:
        UnknownNameError: Unknown software family, precision, model or optimizer.
        CostError: The device has no matrix unit for the precision.
        JobError: The job generates tokens, and no phase of it is meant; or its model cannot.
    """
    if job.workload is WorkloadKind.GENERATE and phase is None:
        raise JobError(job.source, [NO_STEP])
    model = model_of(job) if model is None else model
    job = assuming(with_batch(_with_domains(job), model), model.assumed)
    if job.workload is WorkloadKind.TRAIN:
        job = with_usual_settings(job, model)
    else:
        job = with_inference_software(job)
    if job.precision not in PRECISIONS:
        raise UnknownNameError(
            kind="precision", name=job.precision, known=PRECISIONS, where=job.source
        )
    precision, traits = matrix_precision(job.precision), traits_of_engine(job, job.strategy)
    software = software_of(job, model, traits)
    job = with_release(with_scores(with_widths(job, model, software), model, software), software)
    if not model.own_family:
        job = with_split_experts(job, model, why="as layers of captured models are split")
    model, software = compiled_by(without_stated(model, job, software), software, job.source)
    job = _with_staging(with_sizes(job, model), calibration)
    rates = _rates(job, model, software, precision, calibration)
    job = with_convolutions(job, model, software, rates)
    if job.workload is WorkloadKind.TRAIN:
        job = with_matrix_updates(with_table_updates(job, model, software))
    else:
        job, model = workload_model(job, model, software, phase)
    return Setting(
        job=job,
        model=model,
        software=software,
        precision=precision,
        calibration=calibration,
        pool_rates=rates,
        engine_traits=traits,
    )


def _with_domains(job: Job) -> Job:
    """Return the job with how it fills scale-up domains of several nodes, where it does not say."""
    words = []
    for pool in job.cluster.pools:
        used, whole = pool.domain_devices, pool.node.scale_up.domain_devices
        last = pool.devices - (pool.domains - 1) * used
        if pool.is_packed or pool.domains == 1 or pool.node.devices >= whole:
            continue
        if last < used:
            how = f"fill one scale-up domain of {used} devices after another, the last with {last}"
            each = pool.devices // pool.domains
            some = f"0-{each - 1},{whole}-{whole + each - 1}{',...' if pool.domains > 2 else ''}"
            nodes = pool.domains * whole // pool.node.devices
            other = f'{{devices: "{some}"}} on {nodes} nodes uses all alike'
        elif used < whole:
            how = f"use {used} of the {whole} devices of each scale-up domain"
            other = f"{{devices: 0-{pool.devices - 1}}} fills one after another"
        else:
            continue
        is_free = pool.is_packed is None and not job.cluster.is_mixed
        words.append(f"{pool.label} {how} (an estimate{'; place: ' + other if is_free else ''})")
    return assuming(job, words)


def _rates(
    job: Job, model: ModelGraph, software: Software, precision: Precision, calibration: Calibration
) -> tuple[Rates, ...]:
    """Return what the devices of each pool reach."""
    try:
        rates = pool_rates(
            job.cluster,
            software,
            precision,
            calibration,
            collectives=job.collectives,
            trains=job.workload is WorkloadKind.TRAIN,
            language=model.language,
        )
    except CostError as error:
        raise JobError(job.source, [f"precision: {error}"]) from error
    check_domains(job.cluster, rates, even=job.cluster.has_even_domains)
    # Convolutions in TF32 draw what matrix units do, for a FLOP much less than cores.
    pools = job.cluster.pools
    formats = [_peak_precision(model, each.node.device, precision, software) for each in pools]
    return tuple(
        own
        if each is precision
        else replace(own, power=pool_power(job.cluster, pool, each, calibration))
        for own, pool, each in zip(rates, pools, formats, strict=True)
    )


def _peak_precision(
    model: ModelGraph, device: Device, precision: Precision, software: Software
) -> Precision:
    """Return the format of most products: that of convolutions, if there are more of them."""
    own = convolution_precision(device, precision, software)
    if own is precision:
        return precision
    blocks = (model.blocks[each.block] for each in model.instances)
    kinds = Counter(each.kind for block in blocks for each in block.operators)
    return own if kinds[OperatorKind.CONVOLUTION] > kinds[OperatorKind.MATMUL] else precision


def _with_staging(job: Job, calibration: Calibration) -> Job:
    """Return the job with the host's rate of copies out of pageable memory."""
    if job.data.loader is None:
        return job
    device = job.cluster.pools[0].node.device
    rate = calibration.learned(device, "staging_bytes_per_s")
    loader = replace(job.data.loader, staging_bytes_per_s=rate)
    return replace(job, data=replace(job.data, loader=loader))
