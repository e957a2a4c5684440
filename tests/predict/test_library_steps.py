"""What steps of the transformers library take besides what fused kernels would."""

from __future__ import annotations

from typing import Any

import pytest

from wattree import job_from_mapping, simulate
from wattree.trace import Result

SHAPE = {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 50304}
SMALL = {"micro_batch": 2, "recompute": "none"}
EXPERTS = {"gated": True, "experts": 32, "top_k": 4, "expert_ffn": 512}


def result(*, node: str = "dgx-h200", **changes: Any) -> Result:
    """Return what is predicted of a step of the Trainer on one device."""
    job = {
        "model": {"transformer": {**SHAPE, **changes.pop("shape", {})}},
        "data": {"sequence_length": 1024, "global_batch": 16},
        "precision": "bf16",
        "software": "hf-trainer",
        "cluster": {"node": node},
        "place": {"devices": 0},
        "strategy": {"micro_batch": 16, "recompute": "none"},
        **changes,
    }
    return simulate(job_from_mapping(job)).result


def test_an_odd_vocabulary_is_slow_in_16_bits_unless_padded() -> None:
    """GPT-2's 50,257 words; Inductor and Megatron pad, and of 32 bits all rows begin at 4 bytes.

    Before Ampere, and on other vendors' devices, no asynchronous copies want that.
    """
    odd = {"shape": {"vocab": 50257}}
    longer = {
        name: result(**how, **odd).step_time_s / result(**how).step_time_s
        for name, how in {
            "eager": {},
            "generic": {"software": "generic"},
            "library": {"software": "pytorch"},
            "megatron": {"software": "megatron-core"},
            "compiled": {"compile": True},
            "fp32": {"precision": "fp32"},
            "turing": {"node": "workstation-rtx-2080-ti", "strategy": SMALL},
            "cdna": {"node": "8x-mi300x"},
        }.items()
    }

    assert min(longer.pop(name) for name in ("eager", "generic", "library")) > 1.1
    assert longer == pytest.approx(dict.fromkeys(longer, 1.0), abs=0.01)


def test_windows_save_nothing_behind_masks() -> None:
    """They cost more than attention to all, whose kernel reads no mask."""
    window = {"shape": {"window": 128}}
    masked, plain = result(**window).step_time_s, result().step_time_s
    known = result(**window, traits={"mask_tensors": False}).step_time_s

    assert known < plain < masked


NARROW = {"parameter_bytes": 2, "gather_bytes": 2, "autocast": False}


def test_no_host_waits_for_experts_where_their_products_read_sizes() -> None:
    """Of bf16 weights, on compute capabilities 9 and 10; else one product follows another."""
    jobs: dict[str, dict[str, Any]] = {
        "hopper": {},
        "blackwell": {"node": "hgx-b200"},
        "earlier": {"released": "2025-10"},
        "autocast": {"traits": {}},
        "half": {"precision": "fp16"},
        "ampere": {"node": "dgx-a100"},
        "consumer": {"node": "8x-rtx-5090"},
    }
    found = {
        key: result(**{"shape": EXPERTS, "traits": NARROW, **job}).interval_parts
        for key, job in jobs.items()
    }

    assert {key for key, parts in found.items() if "routing" not in parts} == {
        "hopper", "blackwell",
    }  # fmt: skip


def test_experts_stay_in_32_bits_under_autocast() -> None:
    """As their weights do; before transformers 5, each was a layer, which autocast knows."""
    slower = {
        key: result(shape=EXPERTS, **job).step_time_s
        / result(shape=EXPERTS, traits=NARROW, **job).step_time_s
        for key, job in {"today": {}, "earlier": {"released": "2025-10"}}.items()
    }

    assert slower["today"] > 1.5
    assert slower["earlier"] < 1.3


def test_forward_passes_have_no_loss() -> None:
    """Without labels the library computes none: logits are all that the vocabulary adds."""
    of = [
        result(workload="forward", shape={"vocab": vocab}, strategy={"micro_batch": 16}).step_time_s
        for vocab in (64_000, 128_000)
    ]
    flop = 2.0 * 16 * 1024 * 1024 * 64_000

    assert of[1] - of[0] == pytest.approx(flop / 600e12, rel=0.1)
