"""Gradients of processes that share a device: how fast they are averaged.

A section of `benchmarks.colocation`.
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.frame import Figure, Section
from tests.distributed.ranks import run_ranks

_RANKS = "benchmarks/colocation_reduce_ranks.py"
#: Gradients of the measure, by the issue of this part. [MiB]
_MIB = 64
_PROCESSES, _TURNS, _WARM_UP = 4, 21, 4


def throughput() -> Section:
    """Return how fast 4 processes average 64 MiB, in shared memory against gloo's all-reduce."""
    every = run_ranks(
        _PROCESSES,
        f"{_RANKS}:timed",
        {"mib": _MIB, "turns": _TURNS, "warm_up": _WARM_UP},
        limit_s=300,
    )
    # A turn has ended when its last process has.
    ends = {name: np.max([each[name] for each in every], axis=0) for name in every[0]}
    ratio = float(np.median(ends["gloo"] / ends["shared memory"]))
    rates = ", ".join(
        f"{name} {_MIB * 2**20 / statistics.median(times) / 1e9:.2f} GB/s"
        for name, times in ends.items()
    )
    figure = Figure(
        f"{_PROCESSES} processes, {_MIB} MiB of float32, shared memory against gloo",
        ">= 2 ×",
        f"{ratio:.2f} × ({rates})",
        ratio >= 2.0,
    )
    notes = (
        f"Median over {_TURNS} turns of the ratio of both, one after the other, by the process "
        "that ends last; gradients by time.",
    )
    return Section(title="Reduction on the CPU", figures=(figure,), notes=notes)
