"""Bounds of matmuls and attention: the two roofs, tiles, masks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cost import (
    fused_attention_time_s,
    load_calibration,
    matmul_time_s,
    software_family,
    unfused_attention_time_s,
    unfused_score_bytes,
)
from wattree.cost.attention import share_beside_softmax
from wattree.cost.attention_rates import attention_rates
from wattree.cost.matmul import alignment_factor, array_efficiency, tile_efficiency
from wattree.graph import AttentionMask
from wattree.hardware import Precision, load_device

lengths = st.integers(1, 32_768)
peaks_flop_per_s = st.floats(1e12, 1e16)
bandwidths_bytes_per_s = st.floats(1e10, 1e13)
units = st.integers(1, 304)


def one(value: float) -> np.ndarray:
    """Return an array of one number."""
    return np.array([float(value)])


def matmul_s(
    m: int,
    n: int,
    k: int,
    *,
    flop_per_s: float = 1e15,
    bytes_per_s: float = 1e20,
    compute_units: int = 100,
) -> float:
    """Return the time of one product of two-byte values."""
    return float(
        matmul_time_s(
            m=one(m),
            n=one(n),
            k=one(k),
            groups=one(1),
            flop_per_s=flop_per_s,
            compute_units=compute_units,
            traffic_bytes=2.0 * one(m * k + k * n + m * n),
            memory_bytes_per_s=bytes_per_s,
        )[0]
    )


@given(m=lengths, n=lengths, k=lengths, groups=st.integers(1, 256), compute_units=units)
def test_tile_efficiency_is_a_share(
    m: int, n: int, k: int, groups: int, compute_units: int
) -> None:
    """Above zero, at most one."""
    share = float(tile_efficiency(one(m), one(n), one(k), one(groups), compute_units)[0])

    assert 0.0 < share <= 1.0


@given(
    m=lengths,
    n=lengths,
    k=lengths,
    flop_per_s=peaks_flop_per_s,
    bytes_per_s=bandwidths_bytes_per_s,
    compute_units=units,
)
def test_a_product_is_under_both_roofs(
    *, m: int, n: int, k: int, flop_per_s: float, bytes_per_s: float, compute_units: int
) -> None:
    """Williams et al., CACM 2009: no faster than FLOP over peak, nor than bytes over bandwidth."""
    time_s = matmul_s(
        m, n, k, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s, compute_units=compute_units
    )

    assert time_s >= 2.0 * m * n * k / flop_per_s * (1 - 1e-12)
    assert time_s >= 2.0 * (m * k + k * n + m * n) / bytes_per_s * (1 - 1e-12)


@given(
    m=lengths,
    n=lengths,
    k=lengths,
    flop_per_s=peaks_flop_per_s,
    bytes_per_s=bandwidths_bytes_per_s,
    compute_units=units,
    factor=st.floats(1.0, 10.0),
)
def test_faster_hardware_never_takes_longer(
    *,
    m: int,
    n: int,
    k: int,
    flop_per_s: float,
    bytes_per_s: float,
    compute_units: int,
    factor: float,
) -> None:
    """Monotone in peak and in bandwidth."""
    time_s = matmul_s(
        m, n, k, flop_per_s=flop_per_s, bytes_per_s=bytes_per_s, compute_units=compute_units
    )

    for more in (
        {"flop_per_s": flop_per_s * factor, "bytes_per_s": bytes_per_s},
        {"flop_per_s": flop_per_s, "bytes_per_s": bytes_per_s * factor},
    ):
        assert matmul_s(m, n, k, compute_units=compute_units, **more) <= time_s


def test_large_products_come_near_the_rate() -> None:
    """8192 cubed on 132 units: whole waves, a long contraction."""
    share = tile_efficiency(one(8192), one(8192), one(8192), one(1), 132)

    assert float(share[0]) > 0.9


def test_a_wave_that_is_hardly_filled_costs_as_much_as_a_full_one() -> None:
    """One tile more than there are units: another wave, of smaller tiles (wave quantization)."""
    full, over = (matmul_s(128 * rows, 128, 65_536) for rows in (100, 101))

    assert over > 1.3 * full


@pytest.mark.parametrize("side", [0, 128])
def test_products_without_rows_take_no_time(side: int) -> None:
    """Experts of a rank that receives no token, on any device, and those of some strategies."""
    sizes = {"n": 128.0, "k": 128.0, "flop_per_s": 1e14, "traffic_bytes": 0.0}
    device = {"memory_bytes_per_s": 1e12, "compute_units": 2, "array_side": side}
    for m, groups in ((np.array([0.0, 64.0]), 2.0), (64.0, np.array([0.0, 2.0]))):
        none, some = matmul_time_s(m=m, groups=groups, **sizes, **device)
        assert none == 0.0 < some


def test_misaligned_rows_pay_the_penalty() -> None:
    """A row that is no whole number of 128-byte lines misses the fast path."""
    factors = alignment_factor(np.array([64.0, 65.0, 64.0]), np.array([64.0, 64.0, 72.0]), 1.25)

    assert factors.tolist() == [1.0, 1.25, 1.25]


@given(
    scores=st.floats(1.0, 1e15),
    head_dim=st.integers(1, 512),
    keys=lengths,
    flop_per_s=peaks_flop_per_s,
    ramp=st.floats(0.0, 4096.0),
    backward=st.booleans(),
)
def test_fused_attention_is_under_the_roof(
    scores: float, head_dim: int, keys: int, flop_per_s: float, ramp: float, *, backward: bool
) -> None:
    """Two products forward and five backward, 2 FLOP per score and feature each."""
    time_s = fused_attention_time_s(
        scores=one(scores),
        head_dim=float(head_dim),
        keys=float(keys),
        flop_per_s=flop_per_s,
        ramp_tokens=ramp,
        backward=backward,
    )

    flop = 2.0 * (5 if backward else 2) * scores * head_dim
    assert float(time_s[0]) >= flop / flop_per_s * (1 - 1e-12)


@pytest.mark.parametrize(
    ("name", "measured"),
    [("b200-sxm-180gb", 0.80), ("h100-sxm-80gb", 0.65), ("rtx-pro-6000-server", 0.54)],
)
def test_narrow_heads_wait_for_softmax(name: str, measured: float) -> None:
    """Heads of 64 take half of the products of 128, and the same softmax (AI Configurator)."""
    software = software_family("megatron-core")
    rates = attention_rates(load_device(name), software, Precision.BF16, load_calibration())

    def seconds(head_dim: float) -> float:
        return float(
            fused_attention_time_s(
                scores=one(1e12),
                head_dim=head_dim,
                keys=8192.0,
                flop_per_s=rates["attention_flop_per_s"],
                ramp_tokens=0.0,
                backward=False,
                exponentials_per_s=rates["exponentials_per_s"],
            )[0]
        )

    assert seconds(64.0) / seconds(128.0) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("name", "lanes"),
    [("p100-sxm2-16gb", 64), ("gtx-1080", 128), ("gtx-1660", 64), ("rtx-2070", 64)],
)
def test_exponentials_are_taken_sixteen_at_a_time(name: str, lanes: int) -> None:
    """Beside 128 products, or 64 on a few generations (CUDA C++ Programming Guide)."""
    device = load_device(name)
    software = software_family("pytorch")
    rates = attention_rates(device, software, Precision.FP16, load_calibration())

    products_per_s = device.vector_flop_per_s / 2.0
    assert rates["exponentials_per_s"] == pytest.approx(products_per_s * 16 / lanes)


@given(share=st.floats(0.01, 1.0), matrix_rate=st.floats(0.01, 1.0))
def test_slower_matrix_units_wait_less_for_softmax(share: float, matrix_rate: float) -> None:
    """No share falls, none exceeds what products reach, and units of full rate keep theirs."""
    cut = share_beside_softmax(share, most=0.93, matrix_rate=matrix_rate, products=0.93)
    same = share_beside_softmax(share, most=0.93, matrix_rate=1.0, products=0.93)

    assert share * (1 - 1e-12) <= cut <= max(share, 0.93)
    assert same == pytest.approx(share)


@given(head_dim=st.integers(1, 256), backward=st.booleans())
def test_heads_that_do_not_fill_a_systolic_array_take_what_fills_it(
    head_dim: int, *, backward: bool
) -> None:
    """A head of 64 takes no less than one of 256 whose scores cost nothing."""

    def seconds(padded_head: float) -> float:
        return float(
            fused_attention_time_s(
                scores=one(1e9),
                head_dim=float(head_dim),
                keys=8192.0,
                flop_per_s=5e14,
                ramp_tokens=0.0,
                backward=backward,
                padded_head=padded_head,
                product_flop_per_s=9e14,
            )[0]
        )

    filled_s = 2.0 * (5 if backward else 2) * 1e9 * 256.0 / 9e14
    assert seconds(256.0) == pytest.approx(max(seconds(0.0), filled_s))
    assert seconds(float(head_dim)) == seconds(0.0)


@given(m=lengths, n=lengths, k=lengths, side=st.sampled_from([128, 256]), cores=st.integers(0, 2))
def test_systolic_arrays_are_filled_up(m: int, n: int, k: int, side: int, cores: int) -> None:
    """Ragged groups of rows take a tile more on each core, so no more than plain products."""
    plain, ragged = (
        float(array_efficiency(one(m), one(n), one(k), side, ragged)[0]) for ragged in (0, cores)
    )
    whole = array_efficiency(one(m), one(side * math.ceil(n / side)), one(k), side)

    assert 0.0 < ragged <= plain <= float(whole[0]) <= 1.0


@given(
    scores=st.floats(1.0, 1e15),
    head_dim=st.integers(1, 512),
    bytes_per_s=bandwidths_bytes_per_s,
    backward=st.booleans(),
    library_kernels=st.booleans(),
    autocast=st.booleans(),
)
def test_unfused_attention_moves_its_scores(
    scores: float,
    head_dim: int,
    bytes_per_s: float,
    *,
    backward: bool,
    library_kernels: bool,
    autocast: bool,
) -> None:
    """At least written and read once in 16 bit, whatever the matrix rate."""
    per_score = unfused_score_bytes(
        backward=backward,
        library_kernels=library_kernels,
        autocast=autocast,
        element_bytes=2.0,
    )
    time_s = unfused_attention_time_s(
        scores=one(scores),
        head_dim=float(head_dim),
        flop_per_s=1e30,
        memory_bytes_per_s=bytes_per_s,
        misaligned_factor=1.0,
        score_bytes=per_score,
        backward=backward,
    )

    assert float(time_s[0]) >= 4.0 * scores / bytes_per_s


def test_softmax_in_fp32_and_its_casts_cost_more_than_kernels_made_for_training() -> None:
    """Backward moves more than forward, autocast more than fp16 alone and less than twice fp32."""

    def moved(*, backward: bool, library: bool, autocast: bool, width: float) -> float:
        return unfused_score_bytes(
            backward=backward, library_kernels=library, autocast=autocast, element_bytes=width
        )

    for backward in (False, True):
        fused = moved(backward=backward, library=False, autocast=True, width=2.0)
        half = moved(backward=backward, library=True, autocast=False, width=2.0)
        mixed = moved(backward=backward, library=True, autocast=True, width=2.0)
        full = moved(backward=backward, library=True, autocast=False, width=4.0)
        assert fused < mixed
        assert half < full <= mixed < 2 * full
    assert moved(backward=False, library=True, autocast=True, width=2.0) < mixed


@given(sequence=st.integers(1, 1_000_000))
def test_a_causal_mask_halves_the_scores(sequence: int) -> None:
    """There remain s (s + 1) / 2 of s squared."""
    share = AttentionMask(causal=True).visible_share(sequence)

    assert share * sequence**2 == pytest.approx(sequence * (sequence + 1) / 2, rel=1e-12)


@given(sequence=st.integers(1, 300), window=st.integers(1, 400))
def test_a_causal_window_shows_each_position_its_last_tokens(sequence: int, window: int) -> None:
    """Counted one by one: position i sees min(i, window) tokens, itself included."""
    share = AttentionMask(causal=True, window=window).visible_share(sequence)

    counted = sum(min(position, window) for position in range(1, sequence + 1))
    assert share * sequence**2 == pytest.approx(counted, rel=1e-9)


def test_few_rows_on_ordinary_units_wait_for_memory_and_not_for_tiles() -> None:
    """A vector times weights on A100 in fp32; 16 rows still take a tile, of 32."""
    times = {
        (rows, cores): float(
            matmul_time_s(
                m=one(rows),
                n=one(8192),
                k=one(2048),
                groups=one(1),
                flop_per_s=17.7e12,
                compute_units=108,
                traffic_bytes=one(4 * 8192 * 2048),
                memory_bytes_per_s=1.8e12,
                split_k=True,
                on_cores=cores,
            )[0]
        )
        for rows in (1, 16, 4096)
        for cores in (False, True)
    }
    bound_s = 4 * 8192 * 2048 / 1.8e12

    assert times[1, True] == bound_s < times[1, False] / 2
    assert bound_s < times[16, True] < times[16, False]
    assert times[4096, True] == times[4096, False]
