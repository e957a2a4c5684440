"""A captured model is predicted as the same model that its family's reader makes."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.job import job_from_mapping
from wattree.trace.result import Result

pytest.importorskip("torch")
pytest.importorskip("transformers")

PURE = {"autocast": False, "parameter_bytes": 2, "gradient_bytes": 2}


def step(software: str, batch: int, length: int, *, capture: bool, **more: Any) -> Result:
    """Return a step of Llama 3.2 1B on one H200."""
    job = {
        "model": {"name": "llama-3.2-1b", "capture": capture},
        "data": {"sequence_length": length, "global_batch": batch},
        "precision": "bf16",
        "cluster": {"node": "dgx-h200"},
        "place": {"devices": 0},
        "software": software,
        "strategy": {"micro_batch": batch, "recompute": "none"},
    }
    return wattree.simulate(job_from_mapping(job | more)).result


@pytest.mark.parametrize("software", ["hf-trainer", "deepspeed", "pytorch"])
def test_both_roads_take_as_long_and_hold_as_much(software: str) -> None:
    """Modules of the library run step by step, whoever has read them; so do those of short steps.

    There the host's launches decide, of which a captured graph has some more, for masks and casts.
    """
    wrong = {}
    for what, (batch, length), traits in (
        ("autocast", (4, 2048), {}),
        ("pure", (4, 2048), PURE),
        ("launches", (1, 512), PURE),
    ):
        read, captured = (
            step(software, batch, length, capture=capture, traits=traits)
            for capture in (False, True)
        )
        times = captured.step_time_s / read.step_time_s
        held = captured.memory.peak_bytes / read.memory.peak_bytes
        if not (0.92 < times < (1.4 if what == "launches" else 1.08) and 0.91 < held < 1.02):
            wrong[what] = times, held

    assert wrong == {}
