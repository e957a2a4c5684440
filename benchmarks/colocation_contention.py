"""What processes on the cores of one machine cost each other: `general.colocation_contention_cpu`.

    python -m benchmarks.colocation_contention [--rounds N]

Trains small models in one process and in one for each core (at most eight), each pinned to a core
with one thread, in turns within the same processes: a round times the same steps alone, then
together. `k` processes are `1 + gamma (k - 1)` times slower than one. Medians of the rounds' ratios
are printed for each model; the constant is the median over models. Needs torch and a quiet machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

_MOST = 8
_STEPS = {"perceptron": 40, "convolutions": 20, "wide layer": 20}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=9, help="rounds whose median counts")
    rounds = parser.parse_args(arguments).rounds
    console = Console()
    cores = sorted(os.sched_getaffinity(0))[:_MOST]
    if len(cores) < 2:
        console.print("found one core, expected two or more: no one is there to contend with")
        return 1
    table = Table("model", "processes", "slowdown", "quartiles", "contention", box=None)
    found = []
    for name in _STEPS:
        ratios = sorted(slowdowns(name, cores, rounds))
        middle, quarter = median(ratios), len(ratios) // 4
        found.append((middle - 1) / (len(cores) - 1))
        spread = f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f}"
        table.add_row(name, str(len(cores)), f"{middle:.3f}", spread, f"{found[-1]:.2f}")
    console.print(table)
    console.print(f"general.colocation_contention_cpu: {median(found):.2f} (median of models)")
    return 0


def slowdowns(name: str, cores: Sequence[int], rounds: int) -> list[float]:
    """Return how much slower a step is alongside the others than alone, round by round."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(cores)), context.Queue()
    workers = [
        context.Process(target=_work, args=(name, place, core, rounds, barrier, results))
        for place, core in enumerate(cores)
    ]
    for worker in workers:
        worker.start()
    times = {}
    for _ in workers:
        place, own = results.get()
        times[place] = own
    for worker in workers:
        worker.join()
    # The slowest decides when a step ends for all.
    return [
        max(own[round_][1] for own in times.values()) / times[0][round_][0]
        for round_ in range(rounds)
    ]


def _work(  # noqa: PLR0917 - arguments of a process
    name: str, place: int, core: int, rounds: int, barrier: Any, results: Any
) -> None:
    """Time the first process alone, then all together, round by round."""
    os.sched_setaffinity(0, {core})
    step = _step_of(name)
    for _ in range(5):
        step()
    found = []
    for _ in range(rounds):
        barrier.wait()
        alone = _timed(step, _STEPS[name]) if place == 0 else 0.0
        barrier.wait()
        found.append((alone, _timed(step, _STEPS[name])))
    results.put((place, found))


def _timed(step: Callable[[], None], steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


def _step_of(name: str) -> Callable[[], None]:
    """Return a training step of a small model."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if name == "perceptron":
        layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
        model, data = nn.Sequential(*layers), torch.randn(128, 512)
    elif name == "convolutions":
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 10),
        )
        data = torch.randn(32, 3, 32, 32)
    else:
        model, data = nn.Sequential(nn.Linear(4096, 2048)), torch.randn(16, 4096)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
