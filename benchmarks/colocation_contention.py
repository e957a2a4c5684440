"""What processes on the cores of one machine cost each other: `general.colocation_contention_cpu`.

    python -m benchmarks.colocation_contention [--rounds N]

Trains small models in one process and in one for each core (at most eight), each pinned to a core
with one thread, in turns within the same processes: a round times the same steps alone, then
together. `k` processes are `1 + gamma (k - 1)` times slower than one. Medians of the rounds' ratios
are printed for each model; the constant is the median over models. Needs torch and a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.distributed.ranks import run_ranks

_MOST = 8
#: Of the ranks of one model. [s]
_LIMIT_S = 600.0
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
    every = run_ranks(
        len(cores),
        f"{__file__}:timed",
        {"name": name, "cores": list(cores), "rounds": rounds},
        limit_s=_LIMIT_S,
    )
    # The slowest decides when a step ends for all.
    return [
        max(together for _, together in found) / found[0][0] for found in zip(*every, strict=True)
    ]


def timed(name: str, cores: Sequence[int], rounds: int) -> list[tuple[float, float]]:
    """Return a rank's times of a step, of the first rank alone and of all together. [s]"""
    import torch.distributed as dist

    rank = dist.get_rank()
    os.sched_setaffinity(0, {cores[rank]})
    step = _step_of(name)
    for _ in range(5):
        step()
    found = []
    for _ in range(rounds):
        dist.barrier()
        alone = _timed(step, _STEPS[name]) if rank == 0 else 0.0
        dist.barrier()
        found.append((alone, _timed(step, _STEPS[name])))
    return found


def _timed(step: Callable[[], None], steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps


def _step_of(name: str) -> Callable[[], None]:
    """Return a training step of a small model."""
    import torch
    from torch import nn

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
