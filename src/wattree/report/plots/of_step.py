"""The pictures of one step, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Floats
from wattree.graph import Phase, StreamKind
from wattree.report.plots.bars import draw_links, link_shares
from wattree.report.plots.figure import GROUND, INK, SERIES, Plot, part_colors, time_unit
from wattree.report.plots.named import ROW, NamedSpot, rows_above, write_above, write_beside
from wattree.report.plots.of_runs import step_plot
from wattree.report.trace_counters import memory_levels
from wattree.report.words import COMPONENT_WORDS, part_in_words, percent, quantity
from wattree.trace import COMPONENTS, PowerOverTime, Result, Trace
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
        step_plot(
            {result.timed: asdict(result.time_s)}, timed=result.timed, strategies=[result.strategy]
        ),
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


#: Intervals that a picture divides a step into: finer ones are narrower than a pixel.
_BINS: Final = 480
_FEWEST_BINS: Final = 120
#: Rank classes of a timeline: more rows cannot be read.
_ROWS: Final = 16
_PHASES: Final[Mapping[str, Phase]] = {
    "forward": Phase.FORWARD,
    "recomputation": Phase.RECOMPUTATION,
    "backward": Phase.BACKWARD,
    "optimizer": Phase.OPTIMIZER,
}
_COMMUNICATION: Final = "communication"
#: Height of a row of a timeline. [typographic points]
_PITCH: Final = 29.0
#: Share of its most at which a series is thick enough to be pointed at.
_THICK: Final = 0.5


def draw_memory(axes: Any, trace: Trace, capacity_bytes: float, other_bytes: float = 0.0) -> None:
    """Draw the memory of the fullest rank class by category, and the device's capacity.

    Args:
        other_bytes: What is held all the time and is no tensor of the trace.
    """
    graph = trace.graph
    times_s, levels = fullest_memory(trace)
    edges, unit = _times(times_s)
    # What changes over the step lies on top of what does not.
    held = np.flatnonzero(levels.any(axis=0))
    held = held[np.argsort(np.ptp(levels[:, held], axis=0), kind="stable")]
    names = [part_in_words(graph.category_names[category]) for category in held]
    colors = [SERIES[category % len(SERIES)] for category in held]
    bands = [levels[:, category] / 2**30 for category in held]
    if other_bytes:
        names.insert(0, "framework")
        colors.insert(0, SERIES[len(graph.category_names) % len(SERIES)])
        bands.insert(0, np.full(len(levels), other_bytes / 2**30))
    spots, most = _draw_bands(axes, edges, names, bands, colors)
    axes.axhline(capacity_bytes / 2**30, color=INK, lw=1, ls="--")
    # Written over what does not fit, the word needs a ground.
    axes.annotate(
        "capacity",
        (edges[-1], capacity_bytes / 2**30),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        **({"bbox": GROUND} if most > capacity_bytes / 2**30 else {}),
    )
    axes.set(xlabel=f"time in the step [{unit}]", ylabel="memory of the device [GiB]")
    axes.set(xlim=(0.0, edges[-1]), ylim=(0.0, 1.08 * max(most, capacity_bytes / 2**30)))
    write_beside(axes, spots)


def fullest_memory(trace: Trace) -> tuple[Floats, Floats]:
    """Return the edges of intervals [s], and in each what the fullest class holds by category [B].

    Of each interval the instant is taken at which most is held, so that no peak is lost.
    """
    index = int(np.argmax(trace.peak_bytes))
    times_s, levels = memory_levels(trace, index)
    edges = np.linspace(0.0, max(trace.makespan_s, times_s[-1]), _BINS + 1)
    total = levels.sum(axis=1)
    held = np.zeros((_BINS, levels.shape[1]))
    first = np.searchsorted(times_s, edges[:-1], side="right") - 1
    last = np.searchsorted(times_s, edges[1:], side="left")
    for bin_, (begin, end) in enumerate(zip(first.clip(0), last, strict=True)):
        most = begin + int(np.argmax(total[begin : max(end, begin + 1)]))
        held[bin_] = levels[most]
    return edges, held


def draw_power(axes: Any, power: PowerOverTime) -> None:
    """Draw power by component; what changes over the step lies on top of what does not."""
    names = [name for name in COMPONENTS if name in power.by_component]
    names.sort(key=lambda name: bool(np.ptp(power.by_component[name])))
    bins = max((len(power.by_component[name]) for name in names), default=0)
    edges, unit = _times(np.arange(bins + 1) * power.width_s)
    most = sum(max(power.by_component[name]) for name in names) if names else 1.0
    scale, prefix = next(((s, p) for s, p in ((1e6, "M"), (1e3, "k")) if most >= s), (1.0, ""))
    colors = part_colors(names, tuple(COMPONENT_WORDS))
    spots, top = _draw_bands(
        axes,
        edges,
        [part_in_words(name) for name in names],
        [np.asarray(power.by_component[name]) / scale for name in names],
        [colors[name] for name in names],
    )
    axes.set(xlabel=f"time in the step [{unit}]", ylabel=f"power before PUE [{prefix}W]")
    axes.set(xlim=(0.0, edges[-1] or 1.0), ylim=(0.0, 1.05 * top or 1.0))
    write_beside(axes, spots)


def _draw_bands(
    axes: Any,
    edges: Floats,
    names: Sequence[str],
    bands: Sequence[Floats],
    colors: Sequence[str],
) -> tuple[list[NamedSpot], float]:
    """Draw series on top of each other; return where each can be named, and the highest sum."""
    below, spots = np.zeros(len(edges) - 1), []
    for name, band, color in zip(names, bands, colors, strict=True):
        _fill(axes, edges, below, below + band, color)
        # The last moment at which it is about as thick as ever, and where it mostly is.
        thick, middle = band >= _THICK * band.max(initial=0.0), below + band / 2
        usual = thick & (abs(middle - np.median(middle[thick])) <= band / 2)
        last = int(np.flatnonzero(usual if usual.any() else thick)[-1])
        spots.append(NamedSpot(name, float(edges[last : last + 2].mean()), float(middle[last])))
        below = below + band
    return spots, float(below.max(initial=0.0))


def _fill(axes: Any, edges: Floats, low: Floats, high: Floats, color: str) -> None:
    """Fill between stairs, whose limits are set: `axes.stairs` looks for them at each step."""
    from matplotlib.patches import StepPatch

    style: Any = {"baseline": low, "fill": True, "color": color, "linewidth": 0}
    axes.add_artist(StepPatch(high, edges, **style))


def draw_timeline(axes: Any, trace: Trace) -> None:
    """Draw what each rank class does at each moment: its computation, and below it what it sends.

    Of each interval the share that each phase fills; white is idle: bubbles of a pipeline, and
    waiting for others.
    """
    graph = trace.graph
    rows = min(len(graph.class_names), _ROWS)
    bins = max(_FEWEST_BINS, _BINS // rows)  # many rows of many intervals are a large picture
    edges, unit = _times(np.linspace(0.0, trace.makespan_s, bins + 1))
    colors = dict(zip([*_PHASES, _COMMUNICATION], SERIES, strict=False))
    shares = [busy_shares(trace, row, bins) for row in range(rows)]
    shown = [name for name in colors if any(each[name].any() for each in shares)]
    spots: dict[str, NamedSpot] = {}
    for row in range(rows):
        base = np.full(bins, (row + 0.58) * _PITCH)
        for place, name in enumerate(shown, start=1):
            share, height = shares[row][name], 0.58 * _PITCH
            if name == _COMMUNICATION:
                base, height = np.full(bins, (row + 0.88) * _PITCH), 0.25 * _PITCH
            _fill(axes, edges, base, base - height * share, colors[name])
            if name not in spots and share.any():
                full = np.flatnonzero(share >= _THICK * share.max())
                runs = np.split(full, np.flatnonzero(np.diff(full) > 1) + 1)
                middles = np.array([run[len(run) // 2] for run in runs])
                at = middles[np.argmin(abs(middles - bins * place / len(shown)))]  # apart
                x, y = edges[at : at + 2].mean(), base[at] - height * share[at] / 2
                spots[name] = NamedSpot(name, float(x), float(y))
            base = base - height * share
    hidden = len(graph.class_names) - rows
    names = [name.split(" (")[0] for name in graph.class_names[:rows]]
    axes.set_yticks((np.arange(rows) + 0.4) * _PITCH, names)
    axes.set(xlabel=f"time in the step [{unit}]", xlim=(0.0, edges[-1]))
    axes.set_ylim(rows * _PITCH, -ROW)
    if hidden:
        axes.set_ylabel(f"{hidden} more groups")
    sent = spots.pop(_COMMUNICATION, None)
    write_beside(axes, [sent._replace(x=float(edges[-1]))] if sent else [])
    above = list(spots.values())
    lines = rows_above(axes, above)
    axes.set_ylim(rows * _PITCH, -ROW * lines.rows - 4.0)
    write_above(axes, above, lines, -2.0)


def busy_shares(trace: Trace, rank_class: int, bins: int) -> dict[str, Floats]:
    """Return which share of each interval of the step a class spends in each phase, and sending."""
    graph = trace.graph
    edges = np.linspace(0.0, trace.makespan_s, bins + 1)
    kind = graph.stream_kind[graph.stream_ids]
    tasks = np.repeat(np.arange(graph.tasks), np.diff(graph.stream_offsets))
    mine = graph.stream_class[graph.stream_ids] == rank_class
    computing = np.unique(tasks[mine & (kind == StreamKind.COMPUTE)])
    phases = graph.phase[computing]
    members = {name: computing[phases == phase] for name, phase in _PHASES.items()}
    members[_COMMUNICATION] = np.unique(tasks[mine & (kind == StreamKind.COMMUNICATION)])
    width = max(edges[1] - edges[0], 1e-12)
    return {name: _filled(trace, found, edges) / width for name, found in members.items()}


def _filled(trace: Trace, tasks: NDArray[np.int64], edges: Floats) -> Floats:
    """Return how much of each interval is covered by tasks; overlapping ones count once. [s]"""
    if not len(tasks):
        return np.zeros(len(edges) - 1)
    order = np.argsort(trace.start_s[tasks], kind="stable")
    begin = trace.start_s[tasks][order]
    end = np.maximum.accumulate(trace.end_s[tasks][order])
    begin = np.maximum(begin, np.concatenate([[0.0], end[:-1]]))  # what is covered already
    length = np.maximum(end - begin, 0.0)
    total = np.concatenate([[0.0], np.cumsum(length)])
    points = np.stack([begin, np.maximum(end, begin)], axis=1).reshape(-1)
    values = np.stack([total[:-1], total[1:]], axis=1).reshape(-1)
    return np.diff(np.interp(edges, points, values))


def _times(edges_s: NDArray[Any]) -> tuple[Floats, str]:
    last = float(edges_s[-1]) if len(edges_s) else 0.0
    scale, unit = time_unit(last)
    return edges_s / scale, unit
