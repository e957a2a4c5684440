"""What `wattree launch` costs beside the plain command: time of training, start-up apart.

A section for `benchmarks.colocation`; `python -m benchmarks.colocation_launch [SECONDS]` prints it
alone. Both train the same thing at the same time of day: turn by turn, the order of a pair by turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.energy_frame import Section
from benchmarks.measure import Figure

__all__ = ["overhead"]

_ROOT = Path(__file__).resolve().parents[1]
#: Most that it may cost, and length of a run, by the issue of this part. [s]
_MOST, _RUN_S = 0.01, 60.0
#: Pairs that the time is divided among: a machine's own ups and downs are longer than a pair.
_PAIRS = 6
#: A script as a user has it. It times a fixed number of steps after some that do not count.
_SCRIPT = """
import json, os, sys, time
import torch
steps, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(64, 512)
def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
for _ in range(20): step()
begin = time.perf_counter()
for _ in range(steps): step()
seconds = time.perf_counter() - begin
with open(out, "w") as file: json.dump([seconds, torch.get_num_threads()], file)
"""


def overhead(seconds: float = _RUN_S) -> Section:
    """Return how much longer steps take under `wattree launch` with one process.

    Args:
        seconds: Length of all timed steps of one side, over all pairs. [s]
    """
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        script = folder / "train.py"
        script.write_text(_SCRIPT, encoding="utf-8")
        trial_s, _ = _timed([], script, 200, folder)
        steps = max(int(200 * seconds / _PAIRS / trial_s), 1)
        launcher = [sys.executable, "-m", "wattree", "launch", "--device", "cpu", "--"]
        ratios, plain, threads = [], [], set()
        for pair in range(_PAIRS):
            found = {}
            for prefix in ([], launcher) if pair % 2 else (launcher, []):
                found[bool(prefix)] = _timed(prefix, script, steps, folder)
            ratios.append(found[True][0] / found[False][0])
            plain.append(found[False][0])
            threads |= {found[True][1], found[False][1]}
    ratio = statistics.median(ratios)
    figure = Figure(
        measure=f"wattree launch, one process, {sum(plain):.0f} s of steps ({_PAIRS} × {steps:,})",
        wanted=f"<= {1 + _MOST}",
        found=f"{ratio:.4f} × (pairs {min(ratios):.4f} to {max(ratios):.4f})",
        reached=ratio <= 1 + _MOST,
    )
    notes = (
        "Median over pairs of the time of the same steps with and without, start-up apart; "
        f"{', '.join(map(str, sorted(threads)))} thread(s).",
    )
    return Section(title="Overhead of the launcher", figures=(figure,), notes=notes)


def _timed(prefix: Sequence[str], script: Path, steps: int, folder: Path) -> tuple[float, int]:
    """Return what the steps of a run took, and its threads. [s]"""
    out = folder / "out.json"
    environment = os.environ | {"PYTHONPATH": str(_ROOT / "src")}
    subprocess.run(
        [*prefix, sys.executable, str(script), str(steps), str(out)],
        env=environment,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    seconds, threads = json.loads(out.read_text(encoding="utf-8"))
    return float(seconds), int(threads)


if __name__ == "__main__":
    for line in overhead(float(sys.argv[1]) if len(sys.argv) > 1 else _RUN_S).figures:
        print(f"{line.measure}: {line.found} (wanted {line.wanted})")
