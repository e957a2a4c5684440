"""Layouts that convolutions have in software that puts channels last."""

from __future__ import annotations

from tests.compiler.test_operator_costs import rates_at
from wattree.cost import software_family
from wattree.lowering.operator_costs import converts_layout


def test_software_has_channels_first_over_some_dims() -> None:
    """PyTorch has no other layout of convolutions over time, XLA takes it but for images."""
    expected = {"pytorch-ngc": [1], "tensorflow-xla": [3], "jax": [1, 3], "mxnet": []}
    for family, first in expected.items():
        software, rates = software_family(family), rates_at("amp")
        assert software.channels_last
        assert [dims for dims in (1, 2, 3) if converts_layout(rates, software, dims)] == first
    tpu = rates_at("bf16", "jax", "tpu-v4-host")
    assert not converts_layout(tpu, software_family("jax"), dims=3)
