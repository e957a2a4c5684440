"""Layouts and biases of convolutions, by software."""

from __future__ import annotations

from dataclasses import replace

from tests.compiler.test_operator_costs import PHASES, SCALE, convolution, rates_at, software_at
from wattree.cost import software_family
from wattree.lowering.operator_costs import LocalSize, converts_layout, convolution_costs


def test_software_has_channels_first_over_some_dims() -> None:
    """PyTorch has no other layout of convolutions over time, XLA takes it but for images."""
    expected = {"pytorch-ngc": [1], "tensorflow-xla": [3], "jax": [1, 3], "mxnet": []}
    for family, first in expected.items():
        software, rates = software_family(family), rates_at("amp")
        assert software.channels_last
        assert [dims for dims in (1, 2, 3) if converts_layout(rates, software, dims)] == first
    tpu = rates_at("bf16", "jax", "tpu-v4-host")
    assert not converts_layout(tpu, software_family("jax"), dims=3)


def test_eager_convolutions_add_biases_and_sum_up_their_gradients_apart() -> None:
    """That is left to PyTorch; Inductor does it in kernels that run anyway."""
    eager, rates = software_at("fp32"), rates_at("fp32")
    moved = []
    for software in (eager, replace(eager, compiled=True)):
        for plain in map(convolution, PHASES):
            biased = replace(plain, weights=(*plain.weights, LocalSize(128.0)))
            both = [convolution_costs(s, SCALE, rates, software)[2][0] for s in (biased, plain)]
            moved.append(round((both[0] - both[1]) / (56 * 56 * 128 * 4 * SCALE.micro_batch[0])))
    assert moved == [2, 0, 1, 0, 0, 0]
