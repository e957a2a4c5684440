"""Costs of captured operators in a step: phases, software defaults, and rows of tables."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from wattree.cost import Software, at_precision, load_calibration, matrix_precision, software_family
from wattree.cost.rates import Rates, rates_of
from wattree.graph import AttentionMask, OperatorKind, SlidingWindow
from wattree.hardware import Cluster, Pool, load_fabric, load_node, load_site, site_names
from wattree.hardware.load import default_fabric_name
from wattree.lowering.attention_costs import attention_costs
from wattree.lowering.host_stretch import blocked_s_of
from wattree.lowering.matmul_costs import matmul_costs
from wattree.lowering.operator_costs import (
    convolution_costs,
    library_passes,
    memory_bound_costs,
    weight_casts,
)
from wattree.lowering.program import ComputeInstruction, InstructionPhase, LocalSize, Matmul, Scale

SCALE = Scale(micro_batch=np.array([64.0]), sequence=1.0, degrees={}, batch_axes=())
PHASES = (
    InstructionPhase.FORWARD,
    InstructionPhase.INPUT_GRADIENT,
    InstructionPhase.WEIGHT_GRADIENT,
)


@cache
def rates_at(precision: str, family: str = "pytorch", node: str = "dgx-a100") -> Rates:
    """Return what a node's devices reach."""
    found = load_node(node)
    cluster = Cluster(
        pools=(Pool(node=found, nodes=1),),
        fabric=load_fabric(default_fabric_name(node)),
        site=load_site(site_names()[0]),
    )
    software = at_precision(software_family(family), precision)
    return rates_of(cluster, software, matrix_precision(precision), load_calibration())


def software_at(precision: str, family: str = "pytorch") -> Software:
    """Return a family's defaults."""
    return at_precision(software_family(family), precision)


def per_sample(elements: float) -> LocalSize:
    """Return a size that grows with the batch."""
    return LocalSize(elements, 1)


def convolution(
    phase: InstructionPhase, *, transposed: bool = False, stride: int = 1
) -> ComputeInstruction:
    """Return 3 x 3 taps from 64 channels of 56 x 56 positions to 128."""
    positions, c, k, taps = 56.0 * 56, 64.0, 128.0, 9.0
    sides = (k * taps, c) if transposed else (k, c * taps)
    area = stride**2
    return ComputeInstruction(
        path="conv",
        kind=OperatorKind.CONVOLUTION,
        function="convolution",
        phase=phase,
        traffic=(),
        reads=(per_sample(positions * c * (1 if transposed else area)),),
        writes=(per_sample(positions * k * (area if transposed else 1)),),
        weights=(LocalSize(c * k * taps),),
        window=SlidingWindow(
            kernel=(3, 3), stride=(stride, stride), dilation=(1, 1), transposed=transposed
        ),
        matmul=Matmul(
            m=per_sample(positions),
            n=LocalSize(sides[0]),
            k=LocalSize(sides[1]),
            groups=LocalSize(),
        ),
    )


def elementwise(
    kind: OperatorKind,
    function: str,
    phase: InstructionPhase = InstructionPhase.FORWARD,
    elements: float = 1e6,
    **facts: object,
) -> ComputeInstruction:
    """Return an operator of one input and one output of the same size."""
    size = per_sample(elements)
    given = {"reads": (size,), "writes": (size,), "traffic": (size, size)}
    return ComputeInstruction(
        path=function, kind=kind, function=function, phase=phase, **given | facts
    )


def traffic_bytes(step: ComputeInstruction, precision: str, family: str = "pytorch") -> float:
    """Return what a memory-bound step moves."""
    software = software_at(precision, family)
    passes = library_passes(step, software)
    assert passes is not None
    rates = rates_at(precision, family)
    return float(memory_bound_costs(step, passes, SCALE, rates, software)[2][0])


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_does_its_multiplications_in_every_phase(
    phase: InstructionPhase, *, transposed: bool
) -> None:
    """2 FLOP for each pair of positions, channels and taps."""
    step = convolution(phase, transposed=transposed)
    software = software_at("tf32")
    _, flop, _ = convolution_costs(step, SCALE, rates_at("tf32"), software)
    assert flop[0] == 2.0 * 64 * 56 * 56 * 64 * 128 * 9


def test_a_transposed_convolution_is_the_input_gradient_of_another() -> None:
    """Its forward pass spreads positions out, as the other's gradient does."""
    software = software_at("fp32")
    up = convolution(InstructionPhase.FORWARD, transposed=True, stride=2)
    down = convolution(InstructionPhase.INPUT_GRADIENT, stride=2)
    # The other one goes from 128 channels to 64: what is written here is read there.
    mirrored = replace(
        down,
        reads=up.writes,
        writes=up.reads,
        matmul=Matmul(
            m=per_sample(56.0 * 56),
            n=LocalSize(64.0),
            k=LocalSize(128.0 * 9),
            groups=LocalSize(),
        ),
    )
    times = [convolution_costs(s, SCALE, rates_at("fp32"), software)[0] for s in (up, mirrored)]
    assert times[0] == pytest.approx(times[1])


def test_nchw_costs_conversions_at_16_bits_only() -> None:
    """TF32 and fp32 kernels read NCHW."""
    nchw, step = software_at("amp"), convolution(InstructionPhase.FORWARD)
    nhwc = replace(nchw, channels_last=True)
    by_layout = {
        precision: [
            convolution_costs(step, SCALE, rates_at(precision), software)[0][0]
            for software in (nchw, nhwc)
        ]
        for precision in ("amp", "tf32", "fp32")
    }
    assert by_layout["amp"][0] > 1.2 * by_layout["amp"][1]
    assert by_layout["tf32"][0] == by_layout["tf32"][1]
    assert by_layout["fp32"][0] == by_layout["fp32"][1]


def test_autocast_casts_weights_forward_and_their_gradients_backward() -> None:
    """4 bytes read and 2 written, or the other way round; without autocast nothing."""
    amp, rates = software_at("amp"), rates_at("amp")
    found = [weight_casts(convolution(phase), SCALE, rates, amp) for phase in PHASES]
    weights = 64 * 128 * 9
    assert [float(cast[0]) for cast in found if cast is not None] == [
        6.0 * weights,
        0.0,
        6.0 * weights,
    ]
    assert (
        weight_casts(convolution(PHASES[0]), SCALE, rates_at("tf32"), software_at("tf32")) is None
    )


def test_batch_norm_reads_its_input_twice_in_each_direction() -> None:
    """Statistics before the result, and sums before the gradient."""
    forward, backward = (
        traffic_bytes(elementwise(OperatorKind.BATCH_NORM, "batch_norm", phase), "tf32")
        for phase in PHASES[:2]
    )
    tensor = 64e6 * 4
    assert forward == 3 * tensor
    assert backward == 5 * tensor


def test_layer_norm_runs_in_fp32_under_autocast_and_batch_norm_does_not() -> None:
    """fp32 in and out, and a cast of the result."""
    size = 64e6
    norm = elementwise(OperatorKind.NORM, "native_layer_norm")
    assert traffic_bytes(norm, "amp") == size * (4 + 4 + 6)
    assert traffic_bytes(elementwise(OperatorKind.BATCH_NORM, "batch_norm"), "amp") == size * 2 * 3


def test_kernels_made_for_training_keep_their_own_formula() -> None:
    """Language models' families move each operand once; captured kinds have passes everywhere."""
    norm, pool = (elementwise(kind, "x") for kind in (OperatorKind.NORM, OperatorKind.BATCH_NORM))
    megatron = software_at("bf16", "megatron-core")
    assert library_passes(norm, megatron) is None
    assert library_passes(pool, megatron) is not None


def test_no_kernel_is_shorter_than_the_shortest() -> None:
    """A thousand values take as long as one."""
    software, rates = software_at("tf32"), rates_at("tf32")
    step = elementwise(OperatorKind.COPY, "copy", elements=1.0)
    passes = library_passes(step, software)
    assert passes is not None
    time_s = memory_bound_costs(step, passes, SCALE, rates, software)[0]
    assert time_s[0] == rates.kernel_s


def lookup(row: float, phase: InstructionPhase) -> ComputeInstruction:
    """Return 26 lookups per sample in a table of a million rows."""
    return elementwise(
        OperatorKind.EMBEDDING,
        "embedding",
        phase,
        reads=(),
        writes=(per_sample(26 * row),),
        traffic=(),
        fixed_traffic=((per_sample(26.0), 8.0),),
        weights=(LocalSize(1e6 * row),),
        row=LocalSize(row),
        lookups=per_sample(26.0),
    )


def gradient_bytes(*, rows: float = 1e6, sparse: bool = False) -> float:
    """Return the traffic of the gradient of a table of rows of 128 values, at tf32. [B]"""
    step = lookup(128.0, InstructionPhase.WEIGHT_GRADIENT)
    step = replace(step, weights=(LocalSize(rows * 128.0),))
    software = replace(software_at("tf32"), sparse_gradients=sparse)
    passes = library_passes(step, software)
    assert passes is not None
    return float(memory_bound_costs(step, passes, SCALE, rates_at("tf32"), software)[2][0])


def test_lookups_move_rows_in_whole_sectors() -> None:
    """Indices, the rows, and the result; a row of one fp32 value moves 32 bytes."""
    rows = 64 * 26
    long, short = (
        traffic_bytes(lookup(row, InstructionPhase.FORWARD), "tf32") for row in (128.0, 1.0)
    )
    assert long == rows * (8 + 512 + 512)
    assert short == rows * (8 + 32 + 4)


def test_autocast_leaves_lookups_in_fp32() -> None:
    """Tables are stored so, and no list of PyTorch's casts what is looked up."""
    step = lookup(128.0, InstructionPhase.FORWARD)
    assert traffic_bytes(step, "amp") == traffic_bytes(step, "tf32")


def test_dense_gradients_of_a_table_clear_it_and_sparse_ones_do_not() -> None:
    """A million rows of 512 bytes against the 1,664 that were looked up."""
    dense, sparse = (gradient_bytes(sparse=sparse) for sparse in (False, True))
    assert dense == 64 * 26 * (8 + 512 + 512) + 1e6 * 512
    assert sparse == 64 * 26 * (8 + 512 + 2 * 512)


def test_dense_gradients_write_each_row_of_a_table_once() -> None:
    """1,664 lookups of 100 rows are summed up, row by row, before they are written."""
    assert gradient_bytes(rows=100) == 64 * 26 * (8 + 512) + 100 * (512 + 512)


def test_products_in_turn_do_the_same_work_one_step_after_another() -> None:
    """50 steps of a recurrent layer: as many FLOP, but weights are read each time."""
    software, rates = software_at("tf32"), rates_at("tf32")
    whole = ComputeInstruction(
        path="rnn",
        kind=OperatorKind.MATMUL,
        function="linear",
        phase=InstructionPhase.FORWARD,
        traffic=(),
        matmul=Matmul(
            m=per_sample(50.0), n=LocalSize(4096.0), k=LocalSize(1024.0), groups=LocalSize()
        ),
    )
    in_turn = replace(whole, in_turn=LocalSize(50.0))
    once, steps = (matmul_costs(step, SCALE, rates, software) for step in (whole, in_turn))
    assert steps[1] == once[1]
    assert steps[2] - once[2] == pytest.approx(49 * 4096 * 1024 * 4)
    assert steps[0] > 2 * once[0]


def attention_rate(
    rates: Rates, sequence: float, *, causal: bool = True, head_dim: int = 128
) -> float:
    """Return the rate of one fused attention, forward. [FLOP/s]"""
    instruction = ComputeInstruction(
        path="attention.core",
        kind=OperatorKind.ATTENTION,
        function="",
        traffic=(),
        phase=InstructionPhase.FORWARD,
        batch=per_sample(1.0),
        queries=LocalSize(1.0, 0, 1),
        keys=LocalSize(1.0, 0, 1),
        heads=LocalSize(16.0),
        mask=AttentionMask(causal=causal),
        head_dim=head_dim,
        value_head_dim=head_dim,
    )
    scale = Scale(micro_batch=SCALE.micro_batch, sequence=sequence, degrees={}, batch_axes=())
    software = software_at("bf16", "megatron-core")
    time_s, flop, _ = attention_costs(instruction, scale, rates, software, None)
    return float((flop / time_s)[0])


def test_an_unmasked_query_has_twice_the_keys_of_a_causal_one() -> None:
    """What a block of queries takes besides its products counts half as much."""
    rates, sequence = rates_at("bf16"), 256.0
    unmasked, causal = (attention_rate(rates, sequence, causal=each) for each in (False, True))

    ramp = rates.attention_ramp_tokens / sequence
    assert unmasked / causal == pytest.approx((1 + ramp) / (1 + ramp / 2))


@pytest.mark.parametrize(("head_dim", "share"), [(64, 0.5), (96, 0.75), (192, 0.75)])
def test_a_tpu_computes_heads_of_whole_vectors(head_dim: int, share: float) -> None:
    """Splash attention has 128 lanes, and what does not fill them is padded."""
    rates = rates_at("bf16", node="tpu-v5p-host")
    padded, whole = (attention_rate(rates, 4096.0, head_dim=each) for each in (head_dim, 128))

    assert padded / whole == pytest.approx(share)


@pytest.mark.parametrize(
    ("family", "node", "head_dim", "whole"),
    [
        ("pytorch", "dgx-a100", 72, 96),
        ("pytorch", "dgx-a100", 80, 96),
        ("pytorch", "dgx-a100", 112, 128),
        ("megatron-core", "dgx-h100", 72, 80),  # cuDNN's
        ("llm-foundry", "dgx-h100", 72, 96),  # FlashAttention 2's
        ("megatron-core", "dgx-a100", 72, 80),
        ("pytorch", "dgx-1", 72, 72),  # without either
        ("pytorch", "8x-mi300x", 72, 72),
    ],
)
def test_a_gpu_computes_heads_of_whole_kernels(
    family: str, node: str, head_dim: int, whole: int
) -> None:
    """FlashAttention 2 on L40S: 206 TFLOP/s with heads of 64, 166 with 72, 186 with 80."""
    rates = rates_at("bf16", family, node=node)
    sizes = (head_dim, whole)
    found, full = (size / attention_rate(rates, 4096.0, head_dim=size) for size in sizes)

    assert found == pytest.approx(full)


@pytest.mark.parametrize(
    ("family", "phase", "slower"),
    [
        ("megatron-te", InstructionPhase.FORWARD, 1.0),
        ("megatron-te", InstructionPhase.WEIGHT_GRADIENT, 1 / 0.94),
        ("torchtitan", InstructionPhase.WEIGHT_GRADIENT, 1.0),  # reduces what it computes
    ],
)
def test_gradients_that_are_added_to_fp32_take_longer(
    family: str, phase: InstructionPhase, slower: float
) -> None:
    """Transformer Engine adds them as they are computed, and in 16 bits at no cost."""
    side = LocalSize(8192.0)
    sides = Matmul(m=side, n=side, k=side, groups=LocalSize())
    own = elementwise(OperatorKind.MATMUL, "linear", phase, weights=(side,), matmul=sides)
    rates, software = rates_at("bf16", family), software_at("bf16", family)
    narrow = replace(software, gradient_bytes=2.0)
    wide_s, narrow_s = (matmul_costs(own, SCALE, rates, each)[0] for each in (software, narrow))

    assert float(wide_s[0] / narrow_s[0]) == pytest.approx(slower)


@pytest.mark.parametrize(
    ("kind", "phase", "parameters", "calls"),
    [
        (OperatorKind.ATTENTION, InstructionPhase.FORWARD, 0, 5),
        (OperatorKind.ATTENTION, InstructionPhase.INPUT_GRADIENT, 0, 7),
        (OperatorKind.MATMUL, InstructionPhase.FORWARD, 2, 1),
        (OperatorKind.MATMUL, InstructionPhase.INPUT_GRADIENT, 2, 1),
        (OperatorKind.MATMUL, InstructionPhase.WEIGHT_GRADIENT, 2, 4),
        (OperatorKind.NORM, InstructionPhase.FORWARD, 2, 1),
        (OperatorKind.NORM, InstructionPhase.INPUT_GRADIENT, 2, 3),
    ],
)
def test_blocking_launches_count_every_call(
    kind: OperatorKind, phase: InstructionPhase, parameters: int, calls: int
) -> None:
    """Sums of gradients too; a processor, whose calls were timed, counts operators."""
    own = elementwise(kind, "any", phase, weights=(LocalSize(1e4),) * parameters)
    rates = rates_at("fp16", "megatron-deepspeed")
    processor = replace(rates, launch_s=0.0)

    assert blocked_s_of(own, rates) == pytest.approx(calls * rates.blocking_s)
    assert blocked_s_of(own, processor) == pytest.approx(rates.blocking_s)
    if kind is OperatorKind.ATTENTION:  # in one kernel
        one = replace(rates, fuses_steps=True)
        assert blocked_s_of(own, one) == pytest.approx(rates.blocking_s)
