"""How well screening stands in for simulating everything, and how fast it is.

For small spaces every strategy is simulated: the best one that screening finds (and simulation
confirms) is compared with the best of all, and the closed form's memory verdict with the
simulated one. For big spaces the rate of enumeration and screening is measured. A part of
`benchmarks.main`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
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


def figures() -> list[Figure]:
    """Return the part's lines of the main table."""
    losses, alike = zip(*(_quality(spec, limits) for spec, limits in SPACES.values()), strict=True)
    slowest, loss = min(_rate(spec) for spec in BIG.values()), max(losses)
    return [
        Figure(
            "screening, enumeration and memory included",
            ">= 1,000,000 strategies/s",
            f"{slowest:,.0f} strategies/s",
            slowest >= 1e6,
        ),
        Figure(
            f"best screened then simulated, {len(losses)} spaces",
            "within 2 %",
            f"{loss:.2%} worse at most",
            loss <= 0.02,
        ),
        Figure(
            "memory verdict of screening and simulation",
            "alike on 99 %",
            f"{min(alike):.2%}",
            min(alike) >= 0.99,
        ),
    ]


def _quality(spec: Mapping[str, Any], limits: Limits) -> tuple[float, float]:
    """Simulate every strategy of a space, and compare with screening.

    Returns:
        By how much the best step that screening finds (and simulation confirms) is longer than
        the best of all that fit, and the share of memory verdicts that agree.
    """
    setting = setting_of(job_of(spec), load_calibration(None))
    space = enumerate_space(setting, limits=limits)
    screened = screen(setting, space)
    capacity = setting.job.cluster.node.device.memory_bytes
    constraints = Constraints(memory_bytes=capacity)
    found = search(setting, screened, screened.memory_bytes <= capacity, constraints).found
    time_s, memory = np.array([_simulated(setting, options) for options in space]).T
    fits = memory <= capacity
    found_s = found[0].result.step_time_s if found else float("inf")
    loss = found_s / float(time_s[fits].min(initial=np.inf)) - 1
    return loss, float(np.mean((screened.memory_bytes <= capacity) == fits))


def _simulated(setting: Setting, options: StrategyOptions) -> tuple[float, float]:
    """Return the time of a step and its peak of memory. [s], [B]"""
    try:
        result = predicted(setting, options, detail=False).result
    except (StrategyError, SimulationError) as error:
        raise AssertionError(f"{options} was listed but cannot be simulated: {error}") from error
    return result.step_time_s, result.memory.peak_bytes


def _rate(spec: Mapping[str, Any]) -> float:
    """Return the strategies of a big space listed and screened in a second, the best of three."""
    setting = setting_of(job_of(spec), load_calibration(None))
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        space = enumerate_space(setting)
        screen(setting, space)
        rates.append(len(space) / (time.perf_counter() - began))
    return max(rates)
