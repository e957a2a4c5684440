"""How well screening stands in for simulating everything, and how fast it is.

For small spaces every strategy is simulated: the best one that screening finds (and simulation
confirms) is compared with the best of all, and the closed form's memory verdict with the
simulated one. For big spaces the rate of enumeration and screening is measured. A part of
`benchmarks.main`.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.frame import Figure
from benchmarks.measure import planned_job
from wattree.cost import load_calibration
from wattree.errors import SimulationError, StrategyError
from wattree.predict import Setting, predicted, setting_of
from wattree.search.limits import Limits
from wattree.search.promising import search
from wattree.search.screen import Constraints, screen
from wattree.search.space import enumerate_space
from wattree.strategy import StrategyOptions

#: Model, tokens of a sample, samples of a step, node and how many.
_Spec = tuple[str, int, int, str, int]
#: Every axis is searched in full; other choices are cut so that a space stays below 2,000.
SPACES: tuple[tuple[_Spec, Limits], ...] = (
    (
        ("llama-3.1-8b", 8192, 32, "dgx-h100", 1),
        Limits(micro_batches=(1, 2, 4), virtual_stages=(2,), shardings=("none", "zero1", "zero3")),
    ),
    (
        ("llama-3.1-70b", 4096, 64, "dgx-h100", 4),
        Limits(micro_batches=(1, 2), virtual_stages=(4,), shardings=("zero1", "zero3"),
               axes={"cp": (1, 2)}),
    ),
    (
        ("llama-3.1-70b", 8192, 128, "dgx-h100", 8),
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "hybrid"),
               schedules=("1f1b", "interleaved"), axes={"cp": (1, 4), "fsdp": (1, 8, 32)}),
    ),
    (
        ("mixtral-8x7b", 4096, 64, "dgx-h100", 2),
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "zero3"),
               schedules=("1f1b", "interleaved"), axes={"cp": (1,)}),
    ),
    (
        ("qwen3-30b-a3b", 4096, 64, "dgx-h100", 1),
        Limits(micro_batches=(1, 2), virtual_stages=(2,), shardings=("zero1", "zero3"),
               schedules=("1f1b", "interleaved")),
    ),
    (
        ("gpt2-xl", 1024, 256, "dgx-a100", 2),
        Limits(micro_batches=(4, 8, 16), virtual_stages=(3,), shardings=("none", "zero1", "zero3"),
               axes={"cp": (1,)}),
    ),
)  # fmt: skip

#: Spaces whose rate is measured.
BIG: tuple[_Spec, ...] = (
    ("llama-3.1-70b", 8192, 1024, "dgx-h100", 128),
    ("llama-3.1-405b", 8192, 2048, "dgx-h100", 2048),
)


def figures() -> list[Figure]:
    """Return the part's lines of the main table."""
    losses, alike = zip(*(_quality(spec, limits) for spec, limits in SPACES), strict=True)
    slowest, loss = min(_rate(spec) for spec in BIG), max(losses)
    return [
        Figure.at_least(
            "screening, enumeration and memory included", 1e6, slowest, "{:,.0f} strategies/s"
        ),
        Figure(
            f"best screened then simulated, {len(losses)} spaces",
            "within 2 %",
            f"{loss:.2%} worse at most",
            loss <= 0.02,
        ),
        Figure.at_least("alike memory verdict of simulation", 0.99, min(alike), "{:.2%}"),
    ]


def _quality(spec: _Spec, limits: Limits) -> tuple[float, float]:
    """Simulate every strategy of a space, and compare with screening.

    Returns:
        By how much the best step that screening finds (and simulation confirms) is longer than
        the best of all that fit, and the share of memory verdicts that agree.
    """
    setting = setting_of(planned_job(*spec), load_calibration(None))
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


def _rate(spec: _Spec) -> float:
    """Return the strategies of a big space listed and screened in a second, the best of three."""
    setting = setting_of(planned_job(*spec), load_calibration(None))
    rates = []
    for _ in range(3):
        began = time.perf_counter()
        space = enumerate_space(setting)
        screen(setting, space)
        rates.append(len(space) / (time.perf_counter() - began))
    return max(rates)
