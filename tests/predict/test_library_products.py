"""What libraries of kernels and compilers make of products and of attention."""

from __future__ import annotations

from typing import Any

import pytest

from wattree import job_from_mapping, simulate
from wattree.cost import load_calibration
from wattree.predict import setting_of

_LARGE = {
    "layers": 2, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672, "gated": True,
    "norm": "rms", "vocab": 32000,
}  # fmt: skip


def _job(**changed: Any) -> dict[str, Any]:
    return {
        "model": {"transformer": _LARGE},
        "data": {"sequence_length": 4096, "global_batch": 2},
        "precision": "bf16",
        "cluster": {"node": "dgx-a100"},
        "place": {"devices": 0},
        "strategy": {"micro_batch": 2, "recompute": "none"},
        **changed,
    }


@pytest.mark.parametrize("node", ["dgx-a100", "workstation-rtx-4090", "dgx-h100"])
def test_large_products_of_a_library_are_no_faster_than_those_measured(node: str) -> None:
    """Constants of convolutions make up for losses that such products do not have."""
    job = _job(software="pytorch", cluster={"node": node})
    result = simulate(job_from_mapping(job)).result
    device = job_from_mapping(job).cluster.pool.node.device
    best = load_calibration().device(device, "matmul.bf16")

    assert result.hfu < best


def test_scores_of_modules_written_out_take_longer() -> None:
    """Scale, mask, softmax and its casts are kernels of their own, unless a compiler fuses them."""

    def step_s(**changed: Any) -> float:
        job = _job(traits={"fused_attention": False}, **changed)
        return simulate(job_from_mapping(job)).result.step_time_s

    written, compiled = step_s(software="accelerate"), step_s(software="accelerate", compile=True)
    assert written > 1.2 * compiled


def test_what_a_compiler_fused_runs_no_steps_of_modules() -> None:
    """Of a network whose whole step XLA compiles."""
    job = _job(
        model="vit-b-16",
        data={"global_batch": 64},
        software="jax",
        strategy={"micro_batch": 64},
    )
    setting = setting_of(job_from_mapping(job), load_calibration())

    assert not setting.software.written_out
    assert all(rates.written_out == 0.0 for rates in setting.pool_rates)
