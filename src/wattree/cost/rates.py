"""Rates of one kind of device under one software family, from calibration and datasheet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from wattree.arrays import Floats
from wattree.cost.attention import UNFUSED_RATE
from wattree.cost.attention_rates import attention_rates
from wattree.cost.calibration import Calibration
from wattree.cost.collective import LinkRates
from wattree.cost.collective_model import CollectiveModel
from wattree.cost.convolution import ConvolutionRates
from wattree.cost.convolution_rates import rates_of_software
from wattree.cost.device_links import concurrent_rates, links_of
from wattree.cost.device_power import pool_power
from wattree.cost.expanded import ExpandedMemory
from wattree.cost.expert_rates import expert_rates
from wattree.cost.memory_bound import channel_s, channels_at_once
from wattree.cost.precisions import (
    QUANTIZED_BYTES,
    WIDE,
    computes_on_cores,
    precision_class,
    product_item,
)
from wattree.cost.recurrence import recurrence_rates
from wattree.cost.requests import CollectiveRequests
from wattree.cost.sharing import DeviceSharing, sharing_of
from wattree.cost.software import Software
from wattree.cost.written_out import launches
from wattree.energy import DevicePower
from wattree.errors import CostError
from wattree.hardware import Cluster, Device, Pool, Precision

#: Optimizers whose updates a profile times → bytes of state a parameter.
UPDATE_STATES: Mapping[str, float] = {"sgd": 0.0, "momentum": 4.0, "adamw": 8.0}
#: Fields that are time of the host's, by which processes that share its cores are slower.
_ON_HOST: Final = (
    *("launch_s", "replicate_s", "blocking_s"),
    *("moe_host_s", "expert_launch_s", "step_overhead_s"),
)
#: Fields that are the general constants of their names.
_GENERAL: Final = (
    *("head_misalignment", "kernel_s", "masked_attention_rate", "replicate_s"),
    *("tensor_exposed_share", "wide_accumulation_rate"),
)
#: Architectures with matrix units that PyTorch 1 is taken to run with CUDA 10, whose cuBLAS uses
#: them only where all sizes of a product are multiples of 8 (NVIDIA, Matrix Multiplication
#: Background User's Guide, "Tensor Core Requirements"). Up to 1.12 there were builds for CUDA 10
#: and 11 (pytorch.org, previous versions): which one ran is a choice. Ampere needs CUDA 11.
_BEFORE_CUBLAS_11: Final = frozenset({"turing", "volta"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of operators and links, in SI units.

    Attributes:
        compute_units, on_cores: Units that tiles are spread over; whether those of no matrices.
        linear_flop_per_s: Large matmuls at the job's precision.
        plain_flop_per_s: The same at 16 (or 32) bit, for logits and routers.
        library_flop_per_s: What those of a library do not exceed: the better of that and of
            products alone.
        scores_flop_per_s: Products of unfused attention. Those in fp32 are bound by math, as
            others are, and not by what they read.
        attention_flop_per_s, attention_gradient_flop_per_s: Fused attention of long sequences.
        attention_head_step: Its kernels are for head sizes that are multiples of it.
        exponentials_per_s: Of all units that take them.
        masked_attention_rate: Rate of attention that reads a mask, over that.
        recurrence_flop_per_s, recurrence_gradient_flop_per_s: Recurrences over chunks.
        attention_ramp_tokens: Sequence length at half that rate.
        memory_bytes_per_s: Streaming device memory, as language models' steps do on average.
        stream_bytes_per_s: The same in one library kernel by itself.
        cached_bytes: Traffic of a kernel up to which it goes through a cache; 0 where no one
            measured one. [B]
        cached_bytes_per_s: Bandwidth of such a kernel. [B/s]
        elementwise_factor: Memory traffic of elementwise work over its operands, as launched.
        written_out: Share of what models write out in Python that runs step by step
            (`cost.written_out`).
        fuses_steps: It is one kernel for each tensor that it makes, as in software of its own
            layers since fused attention; else as many as an operator counts.
        casts: Matmuls cast what they read, in kernels of their own.
        written_out_rate: Bandwidth of such steps, over that of kernels made for training.
        dequantization_rate: The same of making a quantized weight wide.
        launch_s, replicate_s: Host time of a kernel, and of handing a tensor to a replica.
        kernel_s: Device time of the shortest kernel.
        channel_s, channels_at_once: As of `cost.memory_bound`.
        start_s: What a kernel takes to start and to drain where a graph replays it when the one
            before has ended; 0 where that is in the rates.
        cuda_graphs: What is replayed, of which the host launches nothing: as of `Software`.
        blocking_s: Time that each kernel adds where launches block, as on CPUs; 0 elsewhere.
        element_bytes: Width of an activation.
        quantized: Linear layers run at 8 or 4 bit and pay for casts.
        quantized_bytes: Width of what they read, with scales of blocks. [B]
        links: Ports of one device.
        collectives: How collectives are carried out, and where.
        overlap_compute_rate: Rate of compute alongside overlapping communication.
        overlap_communication_rate: Rate of overlapping communication alongside compute.
        exchange_s, exchange_s_per_byte: What a collective takes of the processors that compute
            alongside it, and for each byte that a rank sends; 0 where no one timed it, as on
            accelerators. [s, s/B]
        slice_rate: Rate of products with slices of a weight over that with the whole; 1 where
            no one timed it.
        tensor_exposed_share: Share of tensor-parallel traffic that overlap leaves visible.
        wide_accumulation_rate: Rate of products that add to gradients in fp32, over that of others.
        alignment_penalty, and all that end in `_misalignment`: Factors of awkward shapes.
        moe_host_s: Host time of routing, per expert layer and pass.
        expert_launch_s: Host time of a launch where experts have kernels of their own; else 0.
        experts_in_loop: These launches are those of a loop over modules, in Python.
        grouped_product_rate: Rate of products that read sizes of their groups on the device, over
            that of one product, where all tiles are full; 0 where there is no such kernel.
        grouped_tile_rows: Rows of its tiles.
        wide_flop_per_s: Rate of products in fp32 that keep its precision, under autocast.
        expert_fetch_s: Host time to gather a layer of an expert where they are gathered one by one.
        moe_permute_factor: Memory traffic of token permutation over 6 B per routed element.
        permute_rate: Bandwidth of permutation, over that of streaming.
        moe_exchange_factor: Time of expert exchanges over alpha-beta.
        moe_sends_once: A token crosses to a node once however many of its experts live there.
        step_overhead_s: Time per step that belongs to no operator.
        host_update_rate: Share of the host's memory bandwidth that its updates reach.
        straggling: Slowdown per doubling of nodes.
        convolution: What convolutions reach.
        update_rates: State of an optimizer [B] → bandwidth of its updates as their traffic is
            counted, where that was measured. [B/s]
        power: What a device draws; under a limit below the rated one, operators slow by it.
        sharing: How processes share the device; by default there is one.
        ungrouped_reads: Where each query head reads the KV cache for itself, the share of what all
            but the first read that comes from memory.
        array_side, cores: As of the device.
        expanded: Expanded memory that kernels read and write; None: there is none.
    """

    compute_units: int
    on_cores: bool
    linear_flop_per_s: float
    plain_flop_per_s: float
    library_flop_per_s: float
    scores_flop_per_s: float
    attention_flop_per_s: float
    attention_gradient_flop_per_s: float
    attention_head_step: int
    exponentials_per_s: float
    masked_attention_rate: float
    recurrence_flop_per_s: float
    recurrence_gradient_flop_per_s: float
    attention_ramp_tokens: float
    memory_bytes_per_s: float | Floats
    stream_bytes_per_s: float | Floats
    cached_bytes: float
    cached_bytes_per_s: float
    elementwise_factor: float
    written_out: float
    fuses_steps: bool
    casts: bool
    written_out_rate: float
    dequantization_rate: float
    launch_s: float
    replicate_s: float
    kernel_s: float
    channel_s: float
    channels_at_once: int
    start_s: float
    cuda_graphs: str
    blocking_s: float
    element_bytes: float
    quantized: bool
    quantized_bytes: float
    links: LinkRates
    collectives: CollectiveModel
    overlap_compute_rate: float
    overlap_communication_rate: float
    exchange_s: float
    exchange_s_per_byte: float
    slice_rate: float
    tensor_exposed_share: float
    wide_accumulation_rate: float
    alignment_penalty: float
    head_misalignment: float
    key_misalignment: float
    product_misalignment: float
    moe_host_s: float
    expert_launch_s: float
    experts_in_loop: bool
    grouped_product_rate: float
    grouped_tile_rows: float
    wide_flop_per_s: float
    expert_fetch_s: float
    moe_permute_factor: float
    permute_rate: float
    moe_exchange_factor: float
    moe_sends_once: bool
    step_overhead_s: float
    host_update_rate: float
    straggling: float
    convolution: ConvolutionRates
    power: DevicePower
    sharing: DeviceSharing
    update_rates: Mapping[float, float] = field(default_factory=dict)
    expanded: ExpandedMemory | None = None
    ungrouped_reads: float = 1.0
    array_side: int = 0
    cores: int = 1

    def shared(self, processes: int, *, in_turn: bool) -> Rates:
        """Return the rates of a device shared by several processes; arguments as of `sharing`."""
        if processes == 1:
            return self
        sharing = self.sharing.of(processes, in_turn=in_turn)
        host = {name: getattr(self, name) * sharing.host_slowdown for name in _ON_HOST}
        return replace(self, sharing=sharing, **host)

    def update_bytes_per_s(self, state_bytes: float) -> float | Floats:
        """Return the bandwidth of optimizer updates with these bytes of state a parameter. [B/s]"""
        alone = self.update_rates.get(state_bytes, self.memory_bytes_per_s)
        return alone / self.sharing.slowdown

    def accessing(self, share: Floats) -> Rates:
        """Return the rates of a kernel with a `share` of its traffic in expanded memory."""
        assert self.expanded is not None
        factor, of = self.expanded.factor(share), self.convolution
        return replace(
            self,
            memory_bytes_per_s=self.memory_bytes_per_s / factor,
            stream_bytes_per_s=self.stream_bytes_per_s / factor,
            convolution=replace(of, memory_bytes_per_s=of.memory_bytes_per_s / factor),
        )


def rates_of(
    cluster: Cluster,
    software: Software,
    precision: Precision,
    calibration: Calibration,
    *,
    collectives: CollectiveRequests | None = None,
) -> Rates:
    """Return the rates of one kind of device of a cluster.

    Args:
        cluster: Devices and links.
        software: Its software defaults.
        precision: Of matrix work.
        calibration: Constants.
        collectives: Algorithms that are asked for, if any.

    Raises:
        HardwareError: It has several kinds; `pool_rates` returns those of each.
        CostError: The devices have no matrix unit for `precision`.
    """
    asked = collectives or CollectiveRequests()
    return _rates(cluster, cluster.pool, software, precision, calibration, asked)


def pool_rates(
    cluster: Cluster,
    software: Software,
    precision: Precision,
    calibration: Calibration,
    *,
    collectives: CollectiveRequests | None = None,
    **launched: bool,
) -> tuple[Rates, ...]:
    """Return the rates of each pool's devices; arguments as for `rates_of`.

    `trains` and `language` say what is launched, as for `launches`.

    Raises:
        CostError: The devices of a pool have no matrix unit for `precision`.
    """
    found, asked = [], collectives or CollectiveRequests()
    for number, pool in enumerate(cluster.pools, start=1):
        try:
            found.append(_rates(cluster, pool, software, precision, calibration, asked, **launched))
        except CostError as error:
            if not cluster.is_mixed:
                raise
            raise CostError(f"pool {number} ({pool.label}): {error}") from error
    return tuple(found)


def _rates(  # noqa: PLR0917 - as for `rates_of`
    cluster: Cluster,
    pool: Pool,
    software: Software,
    precision: Precision,
    calibration: Calibration,
    collectives: CollectiveRequests,
    **launched: bool,
) -> Rates:
    device = pool.node.device
    math = calibration.math(software, device)
    wide = software.grouped_by_offsets and math * _product_rate(device, Precision.FP32, calibration)
    plain = precision if precision in WIDE else Precision.BF16
    bandwidth = device.memory_bandwidth_bytes_per_s
    stream = bandwidth * calibration.device(device, "library_bandwidth")
    links = links_of(cluster, pool, calibration)
    beside = concurrent_rates(cluster, device, links, calibration)
    of_host = launches(device, software, plain, calibration, **launched)
    return Rates(
        compute_units=device.compute_units,
        array_side=device.array_side,
        cores=device.cores,
        **_products(device, software, precision, plain, calibration),
        attention_ramp_tokens=calibration.device(device, "attention_ramp_tokens"),
        memory_bytes_per_s=bandwidth * calibration.learned(device, "memory_efficiency"),
        stream_bytes_per_s=stream,
        cached_bytes=calibration.own(device, "cached_bytes", 0.0),
        cached_bytes_per_s=calibration.own(device, "cached_bandwidth", 0.0) * bandwidth or stream,
        # A compiler's kernels move each operand once.
        elementwise_factor=calibration.family(software.name, "elementwise")
        if not software.compiled
        else 1.0,
        **of_host,
        channel_s=channel_s(device, software, precision, calibration),
        channels_at_once=channels_at_once(device),
        element_bytes=4.0 if plain in WIDE else 2.0,
        quantized=precision in QUANTIZED_BYTES,
        quantized_bytes=QUANTIZED_BYTES.get(precision, 0.0),
        links=links,
        collectives=CollectiveModel(cluster=cluster.seen_from(pool), requests=collectives),
        overlap_compute_rate=beside[0],
        overlap_communication_rate=beside[1],
        exchange_s=calibration.own(device, "exchange_s", 0.0),
        exchange_s_per_byte=calibration.own(device, "exchange_s_per_byte", 0.0),
        slice_rate=calibration.own(device, "slice_rate", 1.0),
        alignment_penalty=calibration.device(device, "alignment_penalty"),
        key_misalignment=_key_misalignment(device, software, plain, calibration),
        product_misalignment=calibration.device(device, "product_misalignment"),
        **expert_rates(device, software, precision, calibration, launch_s=of_host["launch_s"]),
        wide_flop_per_s=wide,
        **dict[str, Any]((item, calibration.general(item)) for item in _GENERAL),
        host_update_rate=calibration.learned(device, "host_update_rate"),
        straggling=calibration.learned(device, "straggling_per_doubling"),
        convolution=rates_of_software(device, plain, calibration, software, math=math),
        power=pool_power(cluster, pool, precision, calibration),
        sharing=sharing_of(pool.node, calibration),
        update_rates=_update_rates(device, calibration),
        ungrouped_reads=calibration.general("ungrouped_cache_reads"),
    )


def _key_misalignment(
    device: Device, software: Software, plain: Precision, calibration: Calibration
) -> float:
    earlier = software.earlier_host and device.architecture in _BEFORE_CUBLAS_11
    return calibration.general("key_misalignment") if earlier and plain not in WIDE else 1.0


def _products(
    device: Device,
    software: Software,
    precision: Precision,
    plain: Precision,
    calibration: Calibration,
) -> dict[str, Any]:
    """Return the fields of `Rates` for matmuls and attention. [FLOP/s]"""
    math = calibration.math(software, device)
    linear = _product_rate(device, precision, calibration) * math
    linear *= prod(map(calibration.general, scaling_items(software, precision)))
    peak = device.matrix_peak_flop_per_s(plain)
    plain_rate = _product_rate(device, plain, calibration) * math
    item = product_item(device, plain)  # at most the peak where none were measured
    alone = calibration.device(device, item) if calibration.own(device, item, 0.0) else 1.0
    return {
        "on_cores": computes_on_cores(device, plain),
        "linear_flop_per_s": linear,
        "plain_flop_per_s": plain_rate,
        "library_flop_per_s": max(plain_rate, peak * alone),
        "scores_flop_per_s": plain_rate if plain is Precision.FP32 else peak * UNFUSED_RATE,
        **attention_rates(device, software, plain, calibration),
        **recurrence_rates(device, calibration, most_flop_per_s=plain_rate),
    }


def scaling_items(software: Software, precision: Precision) -> tuple[str, ...]:
    """Return the general constants of the rate that large matmuls keep with scales of their own."""
    by_block = ("block_scaling_rate",) if precision is Precision.MXFP8 else ()
    return (*by_block, "row_scaling_rate") if software.row_scales else by_block


def _product_rate(device: Device, precision: Precision, calibration: Calibration) -> float:
    """Return the rate of large matmuls of a training step, whatever the software. [FLOP/s]"""
    alone = calibration.device(device, product_item(device, precision))
    of_steps = calibration.device(device, f"training.{precision_class(precision)}")
    return device.matrix_peak_flop_per_s(precision) * alone * of_steps


def _update_rates(device: Device, calibration: Calibration) -> dict[float, float]:
    """Return measured update bandwidths on a device, by bytes of state a parameter. [B/s]"""
    found = {
        state: calibration.own(device, f"update_bandwidth.{name}", 0.0)
        for name, state in UPDATE_STATES.items()
    }
    bandwidth = device.memory_bandwidth_bytes_per_s
    return {state: share * bandwidth for state, share in found.items() if share > 0}
