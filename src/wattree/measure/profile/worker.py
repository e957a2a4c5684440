"""What one measuring process runs: it takes points from its pipe and answers each with its time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wattree.measure.allocator import cache_freed_memory

#: Nothing here takes so long unless another rank is gone. [s]
_TIMEOUT_S = 120


def serve(descriptor: int) -> None:
    """Answer what comes through a pipe until it ends: first the start, then a point each time."""
    pipe = Connection(descriptor)
    start = pipe.recv()
    import torch

    torch.set_num_threads(start["threads"])
    if start["device"] == "cpu":
        cache_freed_memory()  # as training does
    _join(start)
    from wattree.measure.profile.operations import Bench

    bench = Bench(start["device"], start["rank"], start["ranks"])
    pipe.send({"ready": True, "resident_bytes": _resident_bytes()})
    with contextlib.suppress(EOFError, OSError):
        while True:
            point, window_s = pipe.recv()
            try:
                wall_s, busy_s = bench.seconds(point, window_s)
                answer: dict[str, Any] = {"wall_s": wall_s, "busy_s": busy_s}
            except (RuntimeError, ValueError, NotImplementedError) as error:
                answer = {"error": str(error).splitlines()[0][:300]}
            pipe.send(answer)


def _join(start: Mapping[str, Any]) -> None:
    """Join the group of all ranks."""
    import torch
    import torch.distributed as dist

    on_gpu = start["device"] != "cpu"
    if on_gpu:
        torch.cuda.set_device(start["device"])
    if start["ranks"] > 1:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{start['store']}",
            rank=start["rank"],
            world_size=start["ranks"],
            timeout=timedelta(seconds=_TIMEOUT_S),
        )


def _resident_bytes() -> int:
    """Return the resident memory of the process before it has a model. [B]"""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
