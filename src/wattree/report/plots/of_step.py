"""The pictures of one step, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from wattree.report.plots.bars import draw_links, link_shares
from wattree.report.plots.figure import Plot
from wattree.report.plots.of_runs import step_plot
from wattree.report.plots.over_time import draw_memory, draw_power, draw_timeline
from wattree.report.words import percent, quantity
from wattree.trace import Result, Trace
from wattree.units import format_bytes, format_time

if TYPE_CHECKING:
    from wattree.predict import Prediction

#: Name of a picture → what it shows.
PLOTS: Final[Mapping[str, str]] = {
    "step": "Where the step goes",
    "memory": "Memory over the step",
    "power": "Power over the step",
    "timeline": "What the ranks do over the step",
    "links": "How busy the links are",
}


def plots_of(prediction: Prediction) -> dict[str, Plot]:
    """Return the pictures of a step by name; those that would be empty are left out."""
    result, trace = prediction.result, prediction.trace
    found = [step_plot({"step": asdict(result.time_s)}), _memory(result, trace)]
    if result.power is not None:
        found.append(_power(result))
    found.append(_timeline(trace))
    links, shares = link_shares(trace)
    if links:
        found.append(_links(links, shares.tolist()))
    return {plot.name: plot for plot in found}


def _timeline(trace: Trace) -> Plot:
    classes = len(trace.graph.class_names)
    return Plot(
        name="timeline",
        title=PLOTS["timeline"],
        summary=f"{classes} group{'s' * (classes > 1)} of equal ranks over "
        f"{format_time(trace.makespan_s)}: "
        "computation by phase, and communication below it; gaps are idle time.",
        draw=partial(draw_timeline, trace=trace),
        height_in=1.6 + 0.4 * min(classes, 16),
        is_wide=True,
    )


def _memory(result: Result, trace: Trace) -> Plot:
    memory = result.memory
    return Plot(
        name="memory",
        title=PLOTS["memory"],
        summary=f"Tensors of the fullest device by category, with a peak of "
        f"{format_bytes(float(trace.peak_bytes.max()))} of "
        f"{format_bytes(memory.capacity_bytes)}; with what the framework holds "
        f"{format_bytes(memory.peak_bytes)}.",
        draw=partial(draw_memory, trace=trace, capacity_bytes=memory.capacity_bytes),
    )


def _power(result: Result) -> Plot:
    assert result.power is not None
    return Plot(
        name="power",
        title=PLOTS["power"],
        summary=f"{quantity(result.average_power_w, 'W')} on average, "
        f"{quantity(result.peak_power_w, 'W')} at the peak, by component.",
        draw=partial(draw_power, power=result.power),
    )


def _links(names: Sequence[str], shares: Sequence[float]) -> Plot:
    return Plot(
        name="links",
        title=PLOTS["links"],
        summary=f"{names[0]} is the busiest: {percent(shares[0])} of its bandwidth over the step.",
        draw=partial(draw_links, names=names, shares=np.asarray(shares)),
        height_in=1.0 + 0.32 * len(names),
        is_wide=True,
    )
