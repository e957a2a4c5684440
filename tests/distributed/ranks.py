"""Starts ranks of a function in processes of their own, joined by gloo, and ends them.

    results = run_ranks(4, "tests/runtime/cases.py:function", {"k": 2})

Each rank runs one thread, has `torch.distributed` started, calls `function(**arguments)` and hands
back what it returns (JSON). What fails first is shown first, and the others are ended by their id.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["RankError", "run_ranks"]

ROOT = Path(__file__).resolve().parents[2]
#: What a rank runs: JSON on its command line.
_PROGRAM = """
import importlib.util, json, os, sys
from datetime import timedelta
told = json.loads(sys.argv[1])
import torch, torch.distributed as dist
torch.set_num_threads(1)
path, name = told["function"].rsplit(":", 1)
spec = importlib.util.spec_from_file_location("cases_of_ranks", path)
module = importlib.util.module_from_spec(spec)
sys.modules["cases_of_ranks"] = module
spec.loader.exec_module(module)
if told["start"]:
    dist.init_process_group(
        "gloo", init_method="file://" + told["store"], rank=told["rank"],
        world_size=told["size"], timeout=timedelta(seconds=told["timeout_s"]),
    )
found = getattr(module, name)(**told["arguments"])
with open(told["result"] + ".part", "w") as file:
    json.dump(found, file)
os.replace(told["result"] + ".part", told["result"])
if told["start"]:
    dist.barrier()
    dist.destroy_process_group()
"""


class RankError(AssertionError):
    """A rank failed, or did not end in time.

    Attributes:
        rank: Which one; of several, the first.
        code: What it exited with; None for one that did not end.
        errors: What each rank wrote to standard error.
    """

    def __init__(self, rank: int, code: int | None, errors: Mapping[int, str]) -> None:
        self.rank, self.code, self.errors = rank, code, dict(errors)
        what = "did not end in time" if code is None else f"exited with {code}"
        super().__init__(f"rank {rank} {what}:\n{self.errors.get(rank, '')[-6000:]}")


def run_ranks(
    size: int,
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    limit_s: float = 120.0,
    timeout_s: float = 60.0,
    start: bool = True,
    environment: Mapping[str, str] | None = None,
    prefixes: Sequence[Sequence[str]] | None = None,
) -> list[Any]:
    """Return what `function` returned on every rank.

    Args:
        size: Ranks.
        function: `path/of/file.py:name`, from the checkout.
        arguments: By keyword; plain values.
        limit_s: Time after which all are ended. [s]
        timeout_s: Of the process group. [s]
        start: Whether to start torch.distributed.
        environment: Added to that of the processes.
        prefixes: What to put before the command of each rank, such as `ip netns exec NAME`.

    Raises:
        RankError: A rank failed or hung.
    """
    path, name = function.rsplit(":", 1)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        told = {
            "function": f"{ROOT / path}:{name}",
            "arguments": dict(arguments or {}),
            "store": str(folder / "store"),  # a file: no port that another program might take
            "size": size,
            "timeout_s": timeout_s,
            "start": start,
        }
        children = [
            _start(folder, told, rank, environment or {}, prefixes[rank] if prefixes else ())
            for rank in range(size)
        ]
        try:
            _await(children, folder, time.monotonic() + limit_s)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
        return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(size)]


def _start(
    folder: Path,
    told: Mapping[str, Any],
    rank: int,
    environment: Mapping[str, str],
    prefix: Sequence[str],
) -> subprocess.Popen[bytes]:
    mine = {**told, "rank": rank, "result": str(folder / f"result-{rank}")}
    variables = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "GLOO_SOCKET_IFNAME": "lo",  # a name of the host need not resolve
        **environment,
    }
    with (folder / f"errors-{rank}").open("wb") as errors:
        return subprocess.Popen(
            [*prefix, sys.executable, "-c", _PROGRAM, json.dumps(mine)],
            cwd=ROOT,
            env=variables,
            stdout=errors,
            stderr=errors,
        )


def _await(children: list[subprocess.Popen[bytes]], folder: Path, end_s: float) -> None:
    while True:
        codes = [child.poll() for child in children]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            # Its peers fail of it; a moment lets them say how.
            time.sleep(0.3)
            first = min(failed, key=lambda rank: _ended_s(folder, rank))
            raise RankError(first, codes[first], _errors(folder, len(children)))
        if None not in codes:
            return
        if time.monotonic() > end_s:
            raise RankError(codes.index(None), None, _errors(folder, len(children)))
        time.sleep(0.02)


def _ended_s(folder: Path, rank: int) -> float:
    """Return when a rank last said something; of one that failed, when it did."""
    return (folder / f"errors-{rank}").stat().st_mtime


def _errors(folder: Path, size: int) -> dict[int, str]:
    return {rank: (folder / f"errors-{rank}").read_text(errors="replace") for rank in range(size)}
