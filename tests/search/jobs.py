"""Small jobs to search over."""

from __future__ import annotations

from typing import Any

from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.predict import Setting, setting_of
from wattree.search import Limits

#: A part of the space that is searched in a second: what is asked of plans holds for any part.
FEW = Limits(
    shardings=("none", "zero1", "zero3"), recomputations=("none", "full"), schedules=("1f1b",)
)

#: Less of it, for tests of what is made of a plan: a third of a second.
FEWEST = Limits(
    axes={"cp": (1,), "pp": (1,)},
    micro_batches=(1, 4),
    shardings=("zero1", "zero3"),
    recomputations=("none",),
    schedules=("1f1b",),
    refined=False,
)

#: A decoder whose layers, heads and experts are few enough to simulate every strategy of it.
SMALL = {"layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 4, "ffn": 2816, "vocab": 32000,
         "gated": True, "norm": "rms"}  # fmt: skip


def job(**changes: Any) -> Job:
    """Return a small job; `model`, `nodes`, `batch`, `sequence` and top-level keys may change."""
    small = {"model": "gpt2", "node": "dgx-a100", "nodes": 1, "batch": 16, "sequence": 512}
    given, known = small | changes, small.keys()
    return job_from_mapping(
        {
            "model": given["model"],
            "data": {"sequence_length": given["sequence"], "global_batch": given["batch"]},
            "precision": "bf16",
            "optimizer": "adamw",
            "cluster": {"node": given["node"], "nodes": given["nodes"]},
            "strategy": "auto",
            **{key: value for key, value in given.items() if key not in known},
        }
    )


def setting(**changes: Any) -> Setting:
    """Return the setting of a small job."""
    return setting_of(job(**changes), load_calibration(None))


def generates(model: Any = None, *, batch: int = 8, prompt: int = 64, length: int = 16) -> Job:
    """Return a job that generates on four devices, its strategy open."""
    model = SMALL if model is None else model
    return job_from_mapping(
        {
            "workload": "generate",
            "model": model if isinstance(model, str) else {"transformer": model},
            "data": {"prompt_length": prompt, "generate_length": length, "global_batch": batch},
            "cluster": {"node": "4x-h100-sxm"},
            "strategy": "auto",
        }
    )
