"""What `wattree launch` costs beside the plain command: time of training, start-up apart.

A section for `benchmarks.colocation`. Both train the same thing in turns, each one first as often
as the other, and all that either starts has one core: what the launcher does is not done beside
the training but instead of it.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.frame import Figure, Section
from wattree.runtime.colocation.environment import PARENT

_ROOT = Path(__file__).resolve().parents[1]
#: Most that it may cost, and length of a run, by the issue of this part. [s]
_MOST, _RUN_S = 0.01, 60.0
#: Pairs that the time is divided among: a machine's own ups and downs are longer than a pair.
_PAIRS = 6
#: Runs of no length, for the start-up.
_STARTS = 3
#: A script as a user has it. It times steps for so many seconds, after some that do not count.
_SCRIPT = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
seconds, out = float(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 512)
def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
for _ in range(20): step()
times, until = [], time.perf_counter() + seconds
while not times or time.perf_counter() < until:
    begin = time.perf_counter()
    step()
    times.append(time.perf_counter() - begin)
with open(out, "w") as file:
    json.dump({"times": times, "cpu_s": time.process_time()}, file)
"""


def overhead(seconds: float = _RUN_S) -> Section:
    """Return how much longer steps take under `wattree launch` with one process.

    Args:
        seconds: Length of all timed steps of one side, over all pairs. [s]
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
        starts_s = [_run(folder, 0.0, launched=True).other_cpu_s for _ in range(_STARTS)]
        pairs = []
        for pair in range(_PAIRS):
            order = (False, True) if pair % 2 else (True, False)
            found = {
                launched: _run(folder, seconds / _PAIRS, launched=launched) for launched in order
            }
            pairs.append((found[False], found[True]))
    ratios = [launched.median_s / plain.median_s for plain, launched in pairs]
    ratio = statistics.median(ratios)
    total_s = sum(launched.total_s for _, launched in pairs)
    start_s = statistics.median(starts_s)
    busy = sum(launched.other_cpu_s - start_s for _, launched in pairs) / total_s
    figure = Figure(
        f"wattree launch, one process, {total_s:.0f} s of {_PAIRS} runs",
        f"<= {1 + _MOST}",
        f"{ratio:.4f} × (pairs {min(ratios):.4f} to {max(ratios):.4f})",
        ratio <= 1 + _MOST,
    )
    notes = (
        "Median over pairs of the median step with and without, start-up apart, all on one core. "
        f"The launcher, and what it keeps besides it, used {busy:.2%} of it.",
    )
    return Section(title="Overhead of the launcher", figures=(figure,), notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What came of a run.

    Attributes:
        median_s, total_s: Of a step, and of all. [s]
        other_cpu_s: Processor time of all but the script: the launcher's. [s]
    """

    median_s: float
    total_s: float
    other_cpu_s: float


def _run(folder: Path, seconds: float, *, launched: bool) -> _Run:
    """Train so long, by the launcher or by the plain command."""
    out = folder / "out.json"
    launcher = [sys.executable, "-m", "wattree", "launch", "--device", "cpu", "--"]
    before_s = _children_cpu_s()
    subprocess.run(
        [
            *(launcher if launched else []),
            *(sys.executable, str(folder / "train.py"), str(seconds), str(out)),
        ],
        env=os.environ | {"PYTHONPATH": str(_ROOT / "src"), PARENT: str(os.getpid())},
        stderr=subprocess.DEVNULL,
        preexec_fn=_keep_to_one_core,
        check=True,
    )
    told = json.loads(out.read_text(encoding="utf-8"))
    return _Run(
        median_s=statistics.median(told["times"]),
        total_s=sum(told["times"]),
        other_cpu_s=_children_cpu_s() - before_s - told["cpu_s"],
    )


def _keep_to_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _children_cpu_s() -> float:
    """Return the processor time of processes that this one waited for, and of theirs. [s]"""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime
