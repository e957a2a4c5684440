"""Formatting of numbers and strategies. Nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree.units import NUMBER_WORDS, counted, rounded

if TYPE_CHECKING:
    from wattree.trace import Result

#: Smaller numbers are written with an exponent.
_TINY = 1e-6
NOT_APPLICABLE = "–"
#: Parts below this share of their whole are not shown.
SHOWN_SHARE = 5e-4
#: Probability from which on a verdict needs no other words.
_SURE = 0.9
#: Class of a trace → what people call it.
_CLASS_WORDS = {"products": "matmuls"}
#: Component of power or energy → what people call it, in the order in which they take colors.
COMPONENT_WORDS = {
    "device_static": "devices at rest",
    "device_dynamic": "devices at work",
    "host_processors": "processors",
    "host_memory": "main memory",
    "host_adapters": "network adapters",
    "host_rest": "rest of the hosts",
    "conversion": "power supplies (loss)",
    "switch": "switches",
    "facility": "facility (PUE)",
    "host_idle": "hosts at rest",
    "host_training": "hosts while training",
    "host_loading": "hosts while loading data",
}

_DECIMAL = (
    *((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")),
    *((1e-3, "m"), (1e-6, "µ"), (1e-9, "n")),
)
_GRAMS_PER_TONNE = 1e6
_BINARY = ((2.0**40, "Ti"), (2.0**30, "Gi"), (2.0**20, "Mi"), (2.0**10, "Ki"), (1.0, ""))


def significant(value: float | None) -> str:
    """Return a number with three significant digits, in exponent form only below 10^-6."""
    if value is None:
        return NOT_APPLICABLE
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    if "e" not in text:
        return text
    if abs(value) < _TINY:
        return f"{value:.1e}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def quantity(value: float | None, unit: str) -> str:
    """Return a quantity with an SI prefix and three digits."""
    if value is None:
        return NOT_APPLICABLE
    size = rounded(value)
    scale, prefix = next(((s, p) for s, p in _DECIMAL if size >= s), (1.0, ""))
    return f"{significant(value / scale)} {prefix}{unit}"


def watts(power_w: float | None) -> str:
    """Return a power."""
    return quantity(power_w, "W")


def joules(energy_j: float | None) -> str:
    """Return an energy."""
    return quantity(energy_j, "J")


def with_pue(pue: float | None) -> str:
    """Return what energy includes of the site; power of nodes does not."""
    return "with PUE" if pue is None else f"with PUE {pue:.3g}"


def average_power(power_w: float | None, pue: float | None) -> str:
    """Return the power of nodes, and what the site draws for it: that times the time is energy."""
    words = f"{watts(power_w)} on average before PUE"
    return words if pue is None or power_w is None else f"{words}, {watts(power_w * pue)} with it"


def grams(mass_gco2e: float | None) -> str:
    """Return a mass of carbon, in tonnes where it is one or more."""
    if mass_gco2e is not None and mass_gco2e >= _GRAMS_PER_TONNE:
        return f"{significant(mass_gco2e / _GRAMS_PER_TONNE)} t CO2e"
    return quantity(mass_gco2e, "g CO2e")


def carbon(mass_gco2e: float | None, embodied_gco2e: float | None) -> str:
    """Return a mass of carbon, and how much of it is embodied in the hardware."""
    if embodied_gco2e is None:
        return grams(mass_gco2e)
    return f"{grams(mass_gco2e)} ({grams(embodied_gco2e)} embodied)"


def parts_in_words(shares: Mapping[str, float]) -> str:
    """Return the kinds that make up a whole, the largest share first; traces are left out."""
    parts = sorted(shares.items(), key=lambda part: -part[1])
    return ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in parts if share > 0.005)


def percent(share: float | None) -> str:
    """Return a share of one as percent with one decimal."""
    return NOT_APPLICABLE if share is None else f"{100 * share:.1f} %"


def count(number: float | None) -> str:
    """Return a number of things: exact below a million, then three digits and a word."""
    if number is None:
        return NOT_APPLICABLE
    if abs(number) < 1e6:
        return significant(number)
    word, scale = next(each for each in NUMBER_WORDS if rounded(number) >= each[1])
    return f"{significant(number / scale)} {word}"


def part_in_words(name: str) -> str:
    """Return a part of a step, or of another sum, as people call it."""
    from wattree.trace import STEP_PART_WORDS  # loads numpy, which help does not need

    words = {**STEP_PART_WORDS, **COMPONENT_WORDS, **_CLASS_WORDS}
    return words.get(name) or name.replace("_", " ")


def time_parts(result: Result) -> dict[str, float]:
    """Return where a step goes, by part as people call it. [s]"""
    from wattree.trace import step_part_words  # loads numpy, which help does not need

    words = step_part_words(result.strategy)
    return {words[name]: part for name, part in asdict(result.time_s).items()}


def money(cost_usd: float | None) -> str:
    """Return an amount of US dollars with three digits, however small."""
    return NOT_APPLICABLE if cost_usd is None else f"${significant(cost_usd)}"


def likely(interval: tuple[float, float] | None, shown: Callable[[float], str]) -> str:
    """Return the 80 % interval of a figure in brackets; nothing if unknown."""
    if interval is None:
        return ""
    low, high = (shown(value) for value in interval)
    return f" (80 %: {low} to {high})"


def how_sure(probability: float | None) -> str:
    """Return how sure a verdict is that is true with a probability; nothing if it is sure."""
    sure = 1.0 if probability is None else max(probability, 1.0 - probability)
    return "" if sure >= _SURE else f", {100 * sure:.0f} % sure"


def column(
    values: Sequence[float | None], unit: str, *, binary: bool = False, aligned: bool = True
) -> tuple[str, list[str]]:
    """Return one unit that suits all `values`, and each value in it.

    A table reads best when a column has one unit, in its head.

    Args:
        values: In SI.
        unit: Without prefix.
        binary: Use powers of 1024.
        aligned: Give all the same decimals, three digits to the largest. Otherwise each has three
            digits, which suits values of very different size.
    """
    present = sorted(abs(value) for value in values if value is not None) or [0.0]
    typical = largest = present[-1]
    if not aligned:
        typical = present[len(present) // 2]
    scales = _BINARY if binary else _DECIMAL
    scale, prefix = next(((s, p) for s, p in scales if typical >= s), (1.0, ""))
    scaled = [None if value is None else value / scale for value in values]
    if not aligned:
        return f"{prefix}{unit}", [significant(value) for value in scaled]
    decimals = 2 if largest < 10 * scale else 1 if largest < 100 * scale else 0
    return f"{prefix}{unit}", [
        NOT_APPLICABLE if value is None else f"{value:,.{decimals}f}" for value in scaled
    ]


def job_in_words(result: Result, *, sized: bool = False) -> str:
    """Return the model of a result and its cluster.

    Args:
        sized: With the model's number of parameters.
    """
    return f"{model_in_words(result, sized=sized)} on {result.cluster}"


def model_in_words(result: Result, *, sized: bool = False) -> str:
    """Return the model of a result; of one in a file, the file's name alone."""
    model, _, in_job = result.model.partition(": model.")
    model = Path(model).name if in_job or Path(model).is_absolute() else result.model
    parameters = result.dense_parameters or result.parameters
    return f"{model} ({count(parameters)} parameters)" if sized else model


def changed_function(parameter_ratio: float) -> str:
    """Return that another function is trained than the job's model, and how large it is."""
    return f"changed, {percent(parameter_ratio)} of the model's parameters"


def strategy_in_words(strategy: Mapping[str, Any]) -> str:
    """Return the `strategy` of a result as one line."""
    from wattree.strategy import schedule_in_words  # loads numpy, which help does not need

    meshes = strategy.get("meshes") or {"": {"mesh": strategy.get("mesh") or {}}}
    words = [" + ".join(f"{name} {_degrees(own['mesh'])}".strip() for name, own in meshes.items())]
    if preset := strategy.get("preset"):
        names = [preset] if isinstance(preset, str) else [name for name in preset if name != "none"]
        words += names
    schedule = strategy.get("schedule") or {}
    axis = schedule.get("axis", "pp")
    if "name" in schedule and sum(own["mesh"].get(axis, 1) for own in meshes.values()) > 1:
        words.append(schedule_in_words(str(schedule["name"])))
        if (chunks := schedule.get("virtual_stages") or 1) > 1:
            words.append(f"{chunks} virtual stages")
    if micro_batches := schedule.get("micro_batches"):
        is_count = type(micro_batches) is int  # results of others may have anything
        words.append(
            counted(micro_batches, "micro-batch") if is_count else f"micro-batches {micro_batches}"
        )
    if (processes := strategy.get("processes_per_device") or 1) > 1:
        words.append(f"{processes} processes a device")
    return ", ".join(words)


def _degrees(degrees: Mapping[str, int]) -> str:
    parallel = [f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1]
    return " × ".join(parallel) or "1 device"
