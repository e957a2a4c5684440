"""Jobs that wait for their data."""

from __future__ import annotations

import random
from typing import Any

from tests.predict.loader_queue import Queue
from wattree.job import Job, job_from_mapping

__all__ = ["BATCH", "DENSE", "SLOW", "STRATEGIES", "drawn", "job"]

DENSE = {
    "layers": 4,
    "hidden": 512,
    "heads": 8,
    "ffn": 2048,
    "vocab": 32_000,
    "norm": "rms",
    "positions": "rotary",
}
BATCH = 32
#: What is slow, and how: none of it hides behind the 60 ms of a step.
SLOW: dict[str, dict[str, Any]] = {
    "workers": {"workers": 2, "decode": "40 ms", "sample_bytes": "100 kB"},
    "cores": {"workers": 32, "decode": "40 ms", "augment": "5 ms", "cores": 8},
    "storage": {"workers": 4, "sample_bytes": "10 MB", "storage": {"bandwidth": "1 GB/s"}},
    "copies": {"workers": 4, "sample_bytes": "1 MB", "tensor_bytes": "1500 MB"},
    "decoder": {"workers": 4, "sample_bytes": "1 MB", "device_decode": "30 ms"},
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "pipeline": {"preset": "megatron", "pp": 4},
    "both ways": {"preset": "megatron", "pp": 4, "schedule": "dualpipe"},
    "tensor": {"preset": "megatron", "tp": 2},
    "context": {"preset": "zero1", "cp": 4},
}


def job(loader: Any, strategy: str = "ddp", batch: int = BATCH, **cluster: Any) -> Job:
    """Return a job that loads its data that way, on an H100 node by default."""
    data = {"sequence_length": 1024, "global_batch": batch}
    return job_from_mapping(
        {
            "model": {"transformer": DENSE},
            "data": data if loader is None else data | {"loader": loader},
            "cluster": cluster or {"node": "dgx-h100"},
            "strategy": STRATEGIES[strategy],
        }
    )


def drawn(number: int) -> Queue:
    """Return a loader drawn by number."""
    draw = random.Random(number)
    return Queue(
        workers=draw.randint(1, 6),
        prefetch=draw.randint(2, 3),
        samples=8,
        micro_batches=draw.randint(1, 2),
        read_s=10 ** draw.uniform(-4, -2.3),
        core_s=10 ** draw.uniform(-4, -1.3),
        ranks=draw.randint(1, 4),
        cores=draw.randint(1, 16),
        own_s=10 ** draw.uniform(-2, -0.5),
    )
