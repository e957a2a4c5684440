"""Gates that clamp, for which kernels of the transformers library's modules have no variant."""

from __future__ import annotations

import pytest

import wattree
from wattree.job import job_from_mapping

_SEQUENCE, _LAYERS, _TOP_K, _FFN = 4096, 4, 4, 2048


def result(activation: str, *, compiled: bool = False, **traits: object) -> wattree.Result:
    """Return the result of a step of a small mixture on one device."""
    model = {
        "layers": _LAYERS,
        "hidden": 2048,
        "heads": 32,
        "ffn": _FFN,
        "vocab": 32000,
        "gated": True,
        "activation": activation,
        "norm": "rms",
        "experts": 16,
        "top_k": _TOP_K,
    }
    job = {
        "model": {"transformer": model},
        "data": {"sequence_length": _SEQUENCE, "global_batch": 1},
        "precision": "bf16",
        "cluster": {"node": "dgx-b200"},
        "place": {"devices": 0},
        "software": "hf-trainer",
        "compile": compiled,
        "strategy": {"micro_batch": 1, "recompute": "none"},
        "traits": {
            "autocast": False,
            "parameter_bytes": 2,
            "gradient_bytes": 2,
            **traits,
        },
    }
    return wattree.simulate(job_from_mapping(job)).result


def test_liger_leaves_gates_that_clamp_to_pytorch() -> None:
    """Clamped gate, sigmoid, their product and what that is multiplied by wait for backward."""
    clamped, plain, fused = (
        result("silu_clamped", written_out=False),
        result("silu", written_out=False),
        result("silu_clamped", written_out=False, gates_in_steps=False),
    )
    activations = [each.memory.by_category["activations"] for each in (clamped, plain, fused)]
    kept = 4 * 2.0 * _LAYERS * _SEQUENCE * _TOP_K * _FFN

    assert activations[0] - activations[1] == pytest.approx(kept, rel=1e-6)
    assert activations[2] == pytest.approx(activations[1], rel=1e-6)
    assert clamped.step_time_s > 1.01 * plain.step_time_s
    assert fused.step_time_s == pytest.approx(plain.step_time_s, rel=1e-3)


def test_compilers_merge_the_clamps() -> None:
    """Neither time nor memory is left of them."""
    clamped, plain = (result(each, compiled=True) for each in ("silu_clamped", "silu"))

    assert clamped.step_time_s == pytest.approx(plain.step_time_s, rel=1e-3)
    assert clamped.memory.peak_bytes == pytest.approx(plain.memory.peak_bytes, rel=1e-3)
