"""The pictures of one step, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from wattree.report.plots.bars import draw_links, link_shares
from wattree.report.plots.figure import Plot
from wattree.report.plots.of_runs import step_plot
from wattree.report.plots.over_time import draw_memory, draw_power, draw_timeline
from wattree.report.words import percent, quantity
from wattree.trace import Result, Trace
from wattree.units import counted, format_bytes, format_time

if TYPE_CHECKING:
    from wattree.predict import Prediction

#: Name of a picture → what it shows.
PLOTS: Final[Mapping[str, str]] = {
    "step": "Where the step goes",
    "memory": "Memory over the step",
    "power": "Power over the step",
    "timeline": "What the ranks do over the step",
    "links": "How busy the links are over the step",
}
#: What pictures over time show of generation.
_DECODE: Final = "one decode step in the middle"
#: Parts of memory that are no tensors of a trace.
_OUTSIDE: Final = ("communication", "allocator", "context", "overhead")


def plots_of(prediction: Prediction) -> dict[str, Plot]:
    """Return the pictures of a step by name; those that would be empty are left out."""
    result, trace = prediction.result, prediction.trace
    found = [
        step_plot({result.timed: asdict(result.time_s)}, timed=result.timed),
        _memory(result, trace),
    ]
    if result.power is not None:
        found.append(_power(result))
    found.append(_timeline(trace))
    links, shares = link_shares(trace)
    if links:
        found.append(_links(links, shares.tolist()))
    if result.generation is not None:  # its trace is of one decode step
        found = [replace(plot, title=plot.title.replace("the step", _DECODE)) for plot in found]
    return {plot.name: plot for plot in found}


def _timeline(trace: Trace) -> Plot:
    classes = len(trace.graph.class_names)
    return Plot(
        name="timeline",
        title=PLOTS["timeline"],
        summary=f"{counted(classes, 'group')} of equal ranks over "
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
        summary=f"The fullest device holds at most {format_bytes(memory.peak_bytes)} of "
        f"{format_bytes(memory.capacity_bytes)}, of it "
        f"{format_bytes(float(trace.peak_bytes.max()))} in tensors.",
        draw=partial(
            draw_memory,
            trace=trace,
            capacity_bytes=memory.capacity_bytes,
            other_bytes=_outside_trace(result, trace),
        ),
    )


def _outside_trace(result: Result, trace: Trace) -> float:
    """Return what the device holds that is no tensor of the trace. [B]

    Of generation, whose peak may be in the pass over the prompts, the parts that stay.
    """
    memory = result.memory
    if result.generation is not None:
        return sum(memory.by_category.get(name, 0.0) for name in _OUTSIDE)
    return max(memory.peak_bytes - float(trace.peak_bytes.max()), 0.0)


def _power(result: Result) -> Plot:
    assert result.power is not None
    return Plot(
        name="power",
        title=PLOTS["power"],
        summary=f"{quantity(result.average_power_w, 'W')} on average, "
        f"{quantity(result.peak_power_w, 'W')} at the peak, before PUE, by component.",
        draw=partial(draw_power, power=result.power),
    )


def _links(names: Sequence[str], shares: Sequence[float]) -> Plot:
    return Plot(
        name="links",
        title=PLOTS["links"],
        summary="The busiest link of each kind, averaged over the step. "
        f"{names[0]}: {percent(shares[0])} of its bandwidth.",
        draw=partial(draw_links, names=names, shares=np.asarray(shares)),
        height_in=1.0 + 0.32 * len(names),
        is_wide=True,
    )
