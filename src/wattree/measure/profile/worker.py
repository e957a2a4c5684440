"""What a measuring process runs: it answers each point that comes through its pipe."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

from wattree.measure.allocator import cache_freed_memory

#: Nothing here takes so long unless another rank is gone. [s]
_TIMEOUT_S = 120


def serve(descriptor: int) -> None:
    """Answer points that come through a pipe, until its other side is gone.

    First come rank, number of ranks, threads, device and the file where ranks find each other; the
    answer is the resident memory without a model [B]. Each point comes with its window [s]; the
    answer is the time of a call on the wall and on the processor [s], or a text: why there is none.
    """
    import torch

    try:
        with Connection(descriptor) as pipe:
            rank, ranks, threads, device, store = pipe.recv()
            torch.set_num_threads(threads)
            if device == "cpu":
                cache_freed_memory()  # as training does
            _join(rank, ranks, device, store)
            from wattree.measure.profile.operations import Bench

            bench = Bench(device, rank, ranks)
            pipe.send(_resident_bytes())
            while True:
                point, window_s = pipe.recv()
                try:
                    pipe.send(bench.seconds(point, window_s))
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    pipe.send(str(error).splitlines()[0][:300])
    except (EOFError, OSError):
        sys.exit(0)


def _join(rank: int, ranks: int, device: str, store: str) -> None:
    """Join the group of all ranks."""
    import torch
    import torch.distributed as dist

    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    if ranks > 1:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_TIMEOUT_S),
        )


def _resident_bytes() -> int:
    """Return the resident memory of the process before it has a model. [B]"""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
