"""One measuring process, `python -m wattree.measure.profile.worker`; the protocol is JSON lines.

It reads points on standard input and answers each with its time; what the libraries print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from wattree.measure.allocator import cache_freed_memory
from wattree.measure.profile.points import PointFamily, ProfilePoint

#: Nothing here takes so long unless another rank is gone. [s]
_TIMEOUT_S = 120


def main() -> None:
    """Answer points until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    start = json.loads(sys.stdin.readline())
    os.environ["OMP_NUM_THREADS"] = str(start["threads"])
    import torch

    torch.set_num_threads(start["threads"])
    if start["device"] == "cpu":
        cache_freed_memory()  # as training does
    _join(start)
    from wattree.measure.profile.operations import Bench

    bench = Bench(start["device"], start["rank"], start["ranks"])
    _answer(answers, {"ready": True, "resident_bytes": _resident_bytes()})
    for line in sys.stdin:
        asked = json.loads(line)
        point = ProfilePoint(**{**asked["point"], "kind": PointFamily(asked["point"]["kind"])})
        try:
            wall_s, busy_s = bench.seconds(point, asked["window_s"])
            _answer(answers, {"wall_s": wall_s, "busy_s": busy_s})
        except (RuntimeError, ValueError, NotImplementedError) as error:
            _answer(answers, {"error": str(error).splitlines()[0][:300]})


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


def _answer(answers: Any, what: Mapping[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main()
