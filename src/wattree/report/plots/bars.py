"""Bar charts of sums, link loads, and strategies by two quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from wattree.report.plots.figure import INK, SERIES, label_end, legend, part_colors
from wattree.report.words import part_in_words
from wattree.trace import Trace

#: Links that are drawn, those that carry most.
_LINKS: Final = 10
#: Parts below this share of the longest step are not drawn.
_SHOWN_SHARE: Final = 1e-3
#: Share of the longest bar that a label takes: closer to the line of the limit it would meet it.
_LABEL: Final = 0.18
#: Totals from here on are written as whole numbers.
_LONG: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Sums of parts, a bar each.

    Attributes:
        parts: Name of a bar → part → amount, in SI.
        quantity: What they are of, for the axis.
        unit: Of the axis.
        scale: SI units in one of these.
        limit: A line across all bars, such as a capacity, in SI; None for none.
        known: All parts that such sums can have, in the order of their colors.
    """

    parts: Mapping[str, Mapping[str, float]]
    quantity: str
    unit: str
    scale: float
    limit: float | None = None
    known: Sequence[str] = ()


def draw_bars(axes: Any, bars: Bars) -> None:
    """Draw a bar for each sum, made of its parts, the total at its end."""
    totals = [sum(parts.values()) for parts in bars.parts.values()]
    longest = max([*totals, bars.limit or 0.0, 0.0]) / bars.scale or 1.0
    names = list(bars.parts)
    parts = list(dict.fromkeys(part for each in bars.parts.values() for part in each))
    colors, left = part_colors(parts, bars.known), np.zeros(len(names))
    for part in parts:
        width = np.array([bars.parts[name].get(part, 0.0) for name in names]) / bars.scale
        if width.max(initial=0.0) >= _SHOWN_SHARE * longest:
            style = {"color": colors[part], "label": part_in_words(part), "height": 0.6}
            axes.barh(names, width, left=left, **style)
        left = left + width
    limit = (bars.limit or 0.0) / bars.scale
    for row, total in enumerate(left):
        # Beyond the line of the limit where it would be written across that.
        at = limit if 0.0 < limit - total < _LABEL * longest else total
        label_end(axes, at, row, f"{total:{'.3g' if total < _LONG else ',.0f'}} {bars.unit}")
    if bars.limit is not None:
        axes.axvline(limit, color=INK, linewidth=1.0, linestyle="--")
    room = 0.5 if len(names) == 1 else 0.0  # else a single bar would fill the picture
    axes.set_ylim(len(names) - 0.5 + room, -0.5 - room)
    axes.set(xlabel=f"{bars.quantity} [{bars.unit}]", xlim=(0.0, 1.14 * longest))
    legend(axes)


def draw_links(axes: Any, names: Sequence[str], shares: Any) -> None:
    """Draw the utilization of links over the step."""
    axes.barh(names, 100 * shares, color=SERIES[0], height=0.6)
    for row, share in enumerate(shares):
        label_end(axes, 100 * share, row, f"{100 * share:.1f} %")
    axes.invert_yaxis()
    axes.set(xlabel="used over the step [% of bandwidth]", xlim=(0.0, 112.0))


def link_shares(trace: Trace) -> tuple[list[str], Any]:
    """Return the busiest links, and the utilization of each."""
    graph = trace.graph
    tasks = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    moved = graph.flow_bytes_per_s * graph.work_s[tasks]
    carried = np.bincount(graph.flow_links, weights=moved, minlength=len(graph.link_names))
    could = graph.link_bandwidth_bytes_per_s * max(trace.makespan_s, 1e-12)
    share = np.divide(carried, could, out=np.zeros_like(carried), where=could > 0)
    order = np.argsort(-share, kind="stable")[:_LINKS]
    order = order[share[order] > 0]
    return [graph.link_names[index] for index in order], share[order]


def draw_front(
    axes: Any, points: Sequence[tuple[str, float, float]], *, x_title: str, y_title: str
) -> None:
    """Draw strategies by two quantities, the best of the list marked.

    Args:
        axes: To draw on.
        points: Of each strategy its label and the two quantities, best first.
        x_title, y_title: Quantities with their units.
    """
    xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
    axes.scatter(xs[1:], ys[1:], color=SERIES[0], s=36)
    axes.scatter(xs[:1], ys[:1], color=SERIES[5], s=64, marker="D", zorder=3)
    for number, (_, x, y) in enumerate(points[:_LINKS], start=1):
        axes.annotate(
            f"{number}", (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8.5, color=INK
        )
    axes.set(xlabel=x_title, ylabel=y_title)
    axes.margins(0.12)
