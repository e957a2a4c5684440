"""Small traces as PyTorch's profiler writes them, made by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def event(
    name: str, category: str, start_us: float, duration_us: float, **more: Any
) -> dict[str, Any]:
    """Return one span; `tid` 1 is the training thread."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 10,
        "tid": more.pop("tid", 1),
        "ts": start_us,
        "dur": duration_us,
        "args": more,
    }


def device_rank(*, late_us: float = 0.0, ahead_us: float = 0.0) -> list[dict[str, Any]]:
    """Return two steps of 1,000 us on a device.

    Each has a product of 400 us, attention of 100 us, an elementwise kernel of 50 us, an all-reduce
    that begins at 600 us (and `late_us` on a slow rank) and ends at 900 us, 100 us of it behind an
    optimizer kernel, and 60 us of loading while the device has nothing to do.

    Args:
        late_us: How much later the rank begins its collectives.
        ahead_us: Of its clock.
    """
    found = []
    for step in range(2):
        at = 1000.0 * step + ahead_us
        found += [
            event(f"ProfilerStep#{step + 5}", "user_annotation", at, 1000.0),
            event("enumerate(DataLoader)#_Iter.__next__", "user_annotation", at + 900, 60.0),
            event("ampere_bf16_s16816gemm_128x128", "kernel", at, 400.0, tid=7),
            event("flash_fwd_kernel", "kernel", at + 400, 100.0, tid=7),
            event("vectorized_elementwise_kernel", "kernel", at + 500, 50.0, tid=7),
            event(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                "kernel",
                at + 600 + late_us,
                300.0 - late_us,
                tid=20,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": 1000,
                    "dtype": "BFloat16",
                    "Process Group Name": "3",
                },
            ),
            event("multi_tensor_apply_kernel<adam>", "kernel", at + 800, 100.0, tid=7),
            event("aten::mm", "cpu_op", at, 30.0),
        ]
    return found


def write(
    path: Path, events: list[dict[str, Any]], *, rank: int = 0, world: int = 2, **head: Any
) -> Path:
    """Write a trace of a device, packed if its name says so."""
    whole = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        **head,
        "traceEvents": events,
        "traceName": path.name,
    }
    text = json.dumps(whole, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
