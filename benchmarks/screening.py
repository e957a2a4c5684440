"""How well screening stands in for simulating everything, and how fast it is.

For small spaces every strategy is simulated: the best one that screening finds (and simulation
confirms) is compared with the best of all, and the closed form's memory verdict with the
simulated one. For big spaces the rate of enumeration and screening is measured.

    python -m benchmarks.screening [--spaces NAME,…] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frame import Figure
from wattree.cost import load_calibration
from wattree.errors import SimulationError, StrategyError
from wattree.job import Job, job_from_mapping
from wattree.predict import Setting, predicted, setting_of
from wattree.search.limits import Limits
from wattree.search.promising import search
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

#: Every axis is searched in full; other choices are cut so that a space stays below 2,000.
SPACES: Mapping[str, tuple[dict[str, Any], Limits]] = {
    "llama-3.1-8b, 1 x dgx-h100": (
        {"model": "llama-3.1-8b", "node": "dgx-h100", "nodes": 1, "sequence": 8192, "batch": 32},
        Limits(micro_batches=(1, 2, 4), virtual_stages=(2,), shardings=("none", "zero1", "zero3")),
    ),
    "llama-3.1-70b, 4 x dgx-h100": (
        {"model": "llama-3.1-70b", "node": "dgx-h100", "nodes": 4, "sequence": 4096, "batch": 64},
        Limits(micro_batches=(1, 2), virtual_stages=(4,), shardings=("zero1", "zero3"),
               axes={"cp": (1, 2)}),
    ),
    "llama-3.1-70b, 8 x dgx-h100": (
        {"model": "llama-3.1-70b", "node": "dgx-h100", "nodes": 8, "sequence": 8192, "batch": 128},
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "hybrid"),
               schedules=("1f1b", "interleaved"), axes={"cp": (1, 4), "fsdp": (1, 8, 32)}),
    ),
    "mixtral-8x7b, 2 x dgx-h100": (
        {"model": "mixtral-8x7b", "node": "dgx-h100", "nodes": 2, "sequence": 4096, "batch": 64},
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "zero3"),
               schedules=("1f1b", "interleaved"), axes={"cp": (1,)}),
    ),
    "qwen3-30b-a3b, 1 x dgx-h100": (
        {"model": "qwen3-30b-a3b", "node": "dgx-h100", "nodes": 1, "sequence": 4096, "batch": 64},
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "zero3"),
               schedules=("1f1b", "interleaved")),
    ),
    "gpt2-xl, 2 x dgx-a100": (
        {"model": "gpt2-xl", "node": "dgx-a100", "nodes": 2, "sequence": 1024, "batch": 256},
        Limits(micro_batches=(4, 8, 16), virtual_stages=(3,), shardings=("none", "zero1", "zero3"),
               axes={"cp": (1,)}),
    ),
}  # fmt: skip

#: Spaces whose rate is measured.
BIG: Mapping[str, dict[str, Any]] = {
    "llama-3.1-70b, 128 x dgx-h100": {
        "model": "llama-3.1-70b", "node": "dgx-h100", "nodes": 128, "sequence": 8192, "batch": 1024,
    },
    "llama-3.1-405b, 2048 x dgx-h100": {
        "model": "llama-3.1-405b", "node": "dgx-h100", "nodes": 2048, "sequence": 8192,
        "batch": 2048,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """One small space.

    Attributes:
        strategies: In the space.
        fitting: That fit in memory by simulation.
        best_s: Best step of all that fit. [s]
        found_s: Best step that screening, then simulation of a few found. [s]
        loss: `found_s / best_s - 1`.
        simulated: Strategies that the search simulated.
        verdicts_alike: Share of memory verdicts that agree.
        time_error, time_error_worst: Median and largest |estimate / simulation - 1| of the
            step time, over strategies that fit.
        memory_error: Median |estimate / simulation - 1| of the peak.
        energy_error: The same of energy, over strategies that fit.
        wall_s: For simulating all. [s]
    """

    space: str
    strategies: int
    fitting: int
    best_s: float
    found_s: float
    loss: float
    simulated: int
    verdicts_alike: float
    time_error: float
    time_error_worst: float
    memory_error: float
    energy_error: float
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """One big space: strategies, time to list and estimate them, and their quotient."""

    space: str
    strategies: int
    wall_s: float
    strategies_per_s: float


def job_of(spec: Mapping[str, Any]) -> Job:
    """Return the job of a space."""
    return job_from_mapping(
        {
            "model": spec["model"],
            "data": {"sequence_length": spec["sequence"], "global_batch": spec["batch"]},
            "precision": "bf16",
            "optimizer": "adamw",
            "cluster": {"node": spec["node"], "nodes": spec["nodes"]},
            "strategy": "auto",
        }
    )


def quality(name: str, spec: Mapping[str, Any], limits: Limits) -> Quality:
    """Simulate every strategy of a space and compare."""
    setting = setting_of(job_of(spec), load_calibration(None))
    space = enumerate_space(setting, limits=limits)
    screened = screen(setting, space)
    capacity = setting.job.cluster.node.device.memory_bytes
    constraints = Constraints(memory_bytes=capacity)
    found = search(setting, screened, screened.memory_bytes <= capacity, constraints)
    began = time.perf_counter()
    simulated = np.array([_simulated(setting, options) for options in space]).T
    wall_s = time.perf_counter() - began
    time_s, memory, energy = simulated
    fits = memory <= capacity
    best_s = float(time_s[fits].min(initial=np.inf))
    found_s = found.found[0].result.step_time_s if found.found else float("inf")
    errors = np.abs(screened.step_time_s / time_s - 1)[fits]
    return Quality(
        space=name,
        strategies=len(space),
        fitting=int(fits.sum()),
        best_s=best_s,
        found_s=found_s,
        loss=found_s / best_s - 1,
        simulated=found.simulated,
        verdicts_alike=float(np.mean((screened.memory_bytes <= capacity) == fits)),
        time_error=float(np.median(errors)),
        time_error_worst=float(errors.max()),
        memory_error=float(np.median(np.abs(screened.memory_bytes / memory - 1))),
        energy_error=float(np.median(np.abs(screened.energy_j / energy - 1)[fits])),
        wall_s=wall_s,
    )


def _simulated(setting: Setting, options: StrategyOptions) -> tuple[float, float, float]:
    try:
        result = predicted(setting, options, detail=False).result
    except (StrategyError, SimulationError) as error:
        raise AssertionError(f"{options} was listed but cannot be simulated: {error}") from error
    return result.step_time_s, result.memory.peak_bytes, result.energy_j.total


def rate(name: str, spec: Mapping[str, Any]) -> Rate:
    """Measure enumeration and screening of a big space; the best of three."""
    setting = setting_of(job_of(spec), load_calibration(None))
    walls = []
    for _ in range(3):
        began = time.perf_counter()
        space = enumerate_space(setting)
        screen(setting, space)
        walls.append(time.perf_counter() - began)
    return Rate(
        space=name,
        strategies=len(space),
        wall_s=min(walls),
        strategies_per_s=len(space) / min(walls),
    )


def show(found: Sequence[Quality], rates: Sequence[Rate]) -> str:
    """Return the tables as text."""
    lines = [
        "best screened, then simulated, against best of simulating all (goal: within 2 %); "
        "memory verdict alike (goal: 99 %)",
        f"{'space':<30}{'strategies':>11}{'fit':>6}{'best s':>9}{'found s':>9}{'loss':>8}"
        f"{'played':>8}{'verdict':>9}{'|time|':>8}{'worst':>8}{'|mem|':>7}{'|energy|':>9}",
    ]
    lines += [
        (
            f"{row.space:<30}{row.strategies:>11,}{row.fitting:>6,}{row.best_s:>9.3f}"
            f"{row.found_s:>9.3f}{row.loss:>8.2%}{row.simulated:>8}{row.verdicts_alike:>9.2%}"
            f"{row.time_error:>8.2%}{row.time_error_worst:>8.1%}{row.memory_error:>7.2%}"
            f"{row.energy_error:>9.2%}"
        )
        for row in found
    ]
    lines += ["", "enumeration and screening (goal: 1,000,000 strategies/s)"]
    lines += [
        f"{row.space:<34}{row.strategies:>11,} strategies {row.wall_s:>7.2f} s "
        f"{row.strategies_per_s:>10,.0f} /s"
        for row in rates
    ]
    return "\n".join(lines)


def figures() -> list[Figure]:
    """Return the part's lines of the main table."""
    found = [quality(name, spec, limits) for name, (spec, limits) in SPACES.items()]
    rates = [rate(name, spec) for name, spec in BIG.items()]
    print(show(found, rates))
    slowest = min(row.strategies_per_s for row in rates)
    loss = max(row.loss for row in found)
    alike = min(row.verdicts_alike for row in found)
    return [
        Figure(
            "screening, enumeration and memory included",
            ">= 1,000,000 strategies/s",
            f"{slowest:,.0f} strategies/s",
            slowest >= 1e6,
        ),
        Figure(
            f"best screened then simulated, {len(found)} spaces",
            "within 2 %",
            f"{loss:.2%} worse at most",
            loss <= 0.02,
        ),
        Figure(
            "memory verdict of screening and simulation",
            "alike on 99 %",
            f"{alike:.2%}",
            alike >= 0.99,
        ),
    ]


def main() -> None:
    """Measure and print; exit 0 whatever the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", help="names of spaces, by their first letters, comma-separated")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    wanted = [name.strip() for name in (given.spaces or "").split(",") if name.strip()] or [""]
    found = []
    for name, (spec, limits) in SPACES.items():
        if any(name.startswith(start) for start in wanted):
            found.append(quality(name, spec, limits))
            print(show(found[-1:], ()).splitlines()[2], flush=True)
    rates = [rate(name, spec) for name, spec in BIG.items()] if wanted == [""] else []
    print("\n" + show(found, rates))
    if given.json is not None:
        rows = {"spaces": [asdict(row) for row in found], "rates": [asdict(row) for row in rates]}
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
