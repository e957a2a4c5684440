"""What a step takes more where kernels of the software lack what a model has."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.job import job_from_mapping


def step_s(model: dict[str, Any], *, precision: str = "bf16", **traits: object) -> float:
    """Return the step of a small mixture with four layers on one node. [s]"""
    sizes = {
        "layers": 4,
        "hidden": 2048,
        "heads": 32,
        "ffn": 2048,
        "vocab": 32000,
        "gated": True,
        "activation": "silu",
        "norm": "rms",
        "experts": 16,
        "top_k": 4,
    }
    given: dict[str, Any] = {
        "model": {"transformer": {**sizes, **model}},
        "data": {"sequence_length": 8192, "global_batch": 8},
        "cluster": {"node": "dgx-b200"},
        "software": "megatron-core",
        "precision": precision,
        "strategy": {"ep": 8, "micro_batch": 1},
        "traits": {"cuda_graphs": "full", **traits},
    }
    return wattree.simulate(job_from_mapping(given)).result.step_time_s


@pytest.mark.parametrize(
    ("model", "fused"),
    [
        ({"scaled_rotary": True}, {"fuses_variants": True}),
        ({"activation": "silu_clamped"}, {"moe_fused_experts": True}),
        ({"expert_bias": True}, {"moe_fused_experts": True}),
    ],
)
def test_what_no_kernel_has_takes_time(model: dict[str, Any], fused: dict[str, Any]) -> None:
    """Steps of PyTorch add time, which kernels that have the variant do not."""
    apart = step_s(model) / step_s({})
    together = step_s(model, **fused) / step_s({}, **fused)

    assert apart > 1.01
    assert together == pytest.approx(1.0, abs=0.002)


def test_gradients_of_attention_in_8_bits_have_no_window() -> None:
    """Forward keeps it, so that a step with a window is still the shorter one."""
    window = {"window": 128}
    whole, half = ({"quantized_attention": each} for each in (True, False))

    in_8_bits = step_s(window, precision="fp8", **whole)

    assert step_s(window, precision="fp8", **half) < in_8_bits
    assert in_8_bits < step_s({}, precision="fp8", **whole)
    assert step_s(window, **whole) == pytest.approx(step_s(window, **half))
