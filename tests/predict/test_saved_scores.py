"""Memory of the scores that attention keeps where it is not one kernel."""

from __future__ import annotations

import pytest

import wattree
from wattree.job import job_from_mapping

_LAYERS, _HEADS, _LENGTH, _BATCH = 24, 16, 512, 4


def activations(software: str, precision: str, *, fused: bool) -> float:
    """Return the memory of activations of a step of BERT. [B]"""
    job = job_from_mapping(
        {
            "model": "bert-large",
            "data": {"sequence_length": _LENGTH, "global_batch": _BATCH},
            "precision": precision,
            "cluster": {"node": "dgx-1"},
            "place": {"devices": 0},
            "software": software,
            "traits": {"fused_attention": fused},
            "strategy": {"micro_batch": _BATCH, "recompute": "none"},
        }
    )
    return wattree.simulate(job).result.memory.by_category["activations"]


@pytest.mark.parametrize(
    ("software", "precision", "score_bytes"),
    [
        ("megatron-lm-2021", "fp16", 2 + 1 + 2),  # Korthikanti 2022, equation 1
        ("megatron-lm-2021", "fp32", 4 + 1 + 4),
        ("hf-trainer", "fp16", 4 + 1 + 2),  # autocast runs softmax in fp32 and casts its result
        ("hf-trainer", "fp32", 4 + 1 + 4),
    ],
)
def test_softmax_mask_and_result_are_kept(
    software: str, precision: str, score_bytes: float
) -> None:
    """At the widths that the software computes them in."""
    kept = activations(software, precision, fused=False) - activations(
        software, precision, fused=True
    )

    assert kept == pytest.approx(_LAYERS * _BATCH * _HEADS * _LENGTH**2 * score_bytes, rel=0.02)
