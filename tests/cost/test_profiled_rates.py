"""Devices that were profiled: products, streams and launches by what was timed on them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattree.cost import Calibration, Constant, at_precision, load_calibration, software_family
from wattree.cost.convolution import implicit_matmul_time_s
from wattree.cost.fresh_memory import fresh_s
from wattree.cost.rates import Rates, rates_of
from wattree.hardware import Cluster, Pool, Precision, load_fabric, load_node, load_site

NODE = "2x-xeon-8480c"
DEVICE = "xeon-8480c"
OWN = {
    "product_ramp": 5.0,
    "product_row_ramp": 8.0,
    "product_bandwidth": 0.4,
    "convolution.fp32": 0.9,
    "fresh_s_per_byte": 4e-10,
    "dispatch_s": 6e-6,
    "cached_bytes": 1e6,
    "cached_bandwidth": 3.0,
    "update_bandwidth.sgd": 0.5,
}


def calibration(**own: float) -> Calibration:
    """Return the one that ships with constants of the processor's own."""
    shipped = load_calibration()
    added = {
        f"device.{DEVICE}.{item}": Constant(value=value, evidence="fitted", source="test")
        for item, value in own.items()
    }
    return replace(shipped, constants={**shipped.constants, **added})


@cache
def rates(*, profiled: bool, family: str = "pytorch", nodes: int = 1) -> Rates:
    """Return what the processors reach."""
    cluster = Cluster(
        pools=(Pool(node=load_node(NODE), nodes=nodes),),
        fabric=load_fabric("ethernet-100g"),
        site=load_site("sweden"),
    )
    software = at_precision(software_family(family), Precision.FP32)
    constants = calibration(**OWN) if profiled else load_calibration()
    return rates_of(cluster, software, Precision.FP32, constants)


sizes = st.integers(1, 10_000)


def test_rows_that_share_sets_of_a_cache_slow_a_product() -> None:
    """A result of 8,192 columns, but none of one more, nor of short rows; by its own rows."""
    found = rates(profiled=True).convolution
    slowed = replace(found, kernels=replace(found.kernels, aliased=0.8))
    one = np.ones(4)
    n, row = np.array([8192.0, 8193.0, 2048.0, 2048.0]), np.array([8192.0, 8193.0, 2048.0, 8192.0])
    sizes = {"m": 64.0 * one, "n": n, "k": 512.0 * one, "groups": one, "row": row}

    ratio = implicit_matmul_time_s(**sizes, rates=found) / implicit_matmul_time_s(
        **sizes, rates=slowed
    )

    assert ratio == pytest.approx([0.8, 1.0, 1.0, 0.8])


@given(m=sizes, n=sizes, k=sizes)
def test_a_product_is_the_sum_of_its_roofs(m: int, n: int, k: int) -> None:
    """`2 m n (k + k0) (1 + m0 / m) / rate + bytes / bandwidth + new pages`, written out."""
    found = rates(profiled=True).convolution
    one = [np.array([float(size)]) for size in (m, n, k)]
    time_s = implicit_matmul_time_s(m=one[0], n=one[1], k=one[2], groups=np.ones(1), rates=found)[0]
    device = load_node(NODE).device
    math_s = 2.0 * m * n * (k + 5.0) * (1 + 8.0 / m) / (0.9 * 7.2e12)
    moved_s = 4.0 * (m * k + k * n + m * n) / (0.4 * device.memory_bandwidth_bytes_per_s)
    new_s = 4e-10 * 4.0 * m * n if 4 * m * n >= 32 << 20 else 0.0

    assert time_s == pytest.approx(math_s + moved_s + new_s, rel=0.06)  # a tile at most


@given(m=sizes, n=sizes, k=sizes, more=st.integers(1, 1000))
def test_more_work_never_takes_less_time(m: int, n: int, k: int, more: int) -> None:
    """In any of the three sizes."""
    found = rates(profiled=True).convolution

    def time_s(*shape: int) -> float:
        a, b, c = (np.array([float(size)]) for size in shape)
        return float(implicit_matmul_time_s(m=a, n=b, k=c, groups=np.ones(1), rates=found)[0])

    base = time_s(m, n, k)
    for grown in ((m, n + more, k), (m, n, k + more), (m + more, n, k)):
        assert time_s(*grown) >= base * (1 - 1e-9)


def test_new_memory_costs_from_the_library_s_threshold_on() -> None:
    """Blocks below it are kept by the C library."""
    found = fresh_s(np.array([(32 << 20) - 4.0, 32 << 20]), 1e-9)

    assert found.tolist() == [0.0, pytest.approx(0.0335544)]


def test_gradients_that_are_freed_together_always_cost() -> None:
    """The heap is trimmed when a step's gradients go; small blocks stay in it."""
    found = fresh_s(np.array([(128 << 10) - 4.0, 16 << 20]), 1e-9, is_stored=True)

    assert found.tolist() == [0.0, pytest.approx(0.0167772)]


def test_calls_run_one_after_another_on_a_profiled_processor() -> None:
    """They block, whatever the family says of launches."""
    own, shipped = rates(profiled=True), rates(profiled=False)

    assert (own.launch_s, own.blocking_s) == (0.0, 6e-6)
    assert (shipped.launch_s, shipped.blocking_s) == (
        load_calibration().family("pytorch", "module_launch_s"),
        0.0,
    )


def test_without_constants_of_its_own_nothing_changes() -> None:
    """What no profile measured is priced as before."""
    shipped = rates(profiled=False)

    assert shipped.cached_bytes == 0.0
    assert shipped.cached_bytes_per_s == shipped.stream_bytes_per_s
    assert shipped.update_bytes_per_s(0.0) == shipped.memory_bytes_per_s
    assert not shipped.convolution.kernels.profiled
    assert shipped.convolution.fresh_s_per_byte == 0.0


def test_updates_go_by_their_own_rate_where_it_was_timed() -> None:
    """SGD's was, Adam's was not."""
    own = rates(profiled=True)
    bandwidth = load_node(NODE).device.memory_bandwidth_bytes_per_s

    assert own.update_bytes_per_s(0.0) == 0.5 * bandwidth
    assert own.update_bytes_per_s(8.0) == own.memory_bytes_per_s


def test_products_of_all_families_go_by_what_was_timed() -> None:
    """Tiles of fused training software are those of GPUs."""
    kernels = rates(profiled=True, family="megatron-core").convolution.kernels

    assert kernels.profiled
    assert (kernels.ramp, kernels.row_ramp, kernels.roofs) == (5.0, 8.0, 1.0)
