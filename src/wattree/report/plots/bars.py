"""Bar charts of sums, link loads, and strategies by two quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from wattree.report.plots.figure import INK, SERIES, label_end, legend, part_colors
from wattree.report.words import part_in_words
from wattree.trace import Trace

#: Kinds of links that are drawn.
_LINKS: Final = 10
#: Parts below this share of the longest step are not drawn.
_SHOWN_SHARE: Final = 1e-3
#: Share of the longest bar that a label takes: closer to the line of the limit it would meet it.
_LABEL: Final = 0.18
#: Of labels of points: width of a character, height, and that of a mark. [typographic points]
_GLYPH: Final = 6.0
_LABEL_HEIGHT: Final = 11.0
_MARK: Final = 6.0
#: Where the middle of a label may lie from its point, in the order of trying. [typographic points]
_PLACES: Final = tuple(
    (far * across, far * up)
    for far in (1.0, 1.8)
    for across, up in (
        *((13.0, 9.0), (-13.0, -9.0), (0.0, 11.0), (0.0, -11.0)),
        *((16.0, 0.0), (-16.0, 0.0), (-13.0, 9.0), (13.0, -9.0)),
    )
)
#: Of points that are not labeled.
_GRAY: Final = SERIES[6]
#: Totals from here on are written as whole numbers.
_LONG: Final = 999.5


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
        label_end(axes, at, row, f"{_three_digits(total)} {bars.unit}")
    if bars.limit is not None:
        axes.axvline(limit, color=INK, linewidth=1.0, linestyle="--")
    room = 0.5 if len(names) == 1 else 0.0  # else a single bar would fill the picture
    axes.set_ylim(len(names) - 0.5 + room, -0.5 - room)
    axes.set(xlabel=f"{bars.quantity} [{bars.unit}]", xlim=(0.0, 1.14 * longest))
    legend(axes)


def _three_digits(value: float) -> str:
    """Return a number with three digits, zeros included: of bars that are compared."""
    return f"{value:#.3g}".removesuffix(".") if value < _LONG else f"{value:,.0f}"


def draw_links(axes: Any, names: Sequence[str], shares: Any) -> None:
    """Draw the utilization of links over the step."""
    axes.barh(names, 100 * shares, color=SERIES[0], height=0.6)
    for row, share in enumerate(shares):
        label_end(axes, 100 * share, row, f"{100 * share:.1f} %")
    axes.invert_yaxis()
    axes.set(xlabel="used over the step [% of bandwidth]", xlim=(0.0, 112.0))


def link_shares(trace: Trace) -> tuple[list[str], Any]:
    """Return the busiest link of each kind, and the utilization of each.

    Links of one kind are alike on most stages: ten of them would say the same.
    """
    graph = trace.graph
    tasks = np.repeat(np.arange(graph.tasks), np.diff(graph.flow_offsets))
    moved = graph.flow_bytes_per_s * graph.work_s[tasks]
    carried = np.bincount(graph.flow_links, weights=moved, minlength=len(graph.link_names))
    could = graph.link_bandwidth_bytes_per_s * max(trace.makespan_s, 1e-12)
    share = np.divide(carried, could, out=np.zeros_like(could), where=could > 0)
    busiest: dict[str, int] = {}
    for index in np.argsort(-share, kind="stable").tolist():
        # 'stage 3 (32 ranks) network out' is of the kind 'network out'.
        busiest.setdefault(graph.link_names[index].rsplit(") ", 1)[-1], index)
    order = np.array([index for index in busiest.values() if share[index] > 0][:_LINKS], dtype=int)
    return [graph.link_names[index] for index in order], share[order]


def draw_front(
    axes: Any,
    points: Sequence[tuple[str, float, float]],
    *,
    x_title: str,
    y_title: str,
    always: int = 1,
) -> None:
    """Draw strategies or clusters by two quantities, the best of the list marked.

    Args:
        axes: To draw on.
        points: Of each its label and the two quantities, best first. Those without a label are
            drawn gray.
        x_title, y_title: Quantities with their units.
        always: Points whose labels are written in any case; others where they have room.
    """
    xs, ys = np.array([x for _, x, _ in points]), np.array([y for _, _, y in points])
    colors = [SERIES[0] if label else _GRAY for label, _, _ in points]
    axes.scatter(xs[1:], ys[1:], color=colors[1:], s=36)
    axes.scatter(xs[:1], ys[:1], color=SERIES[5], s=64, marker="D", zorder=3)
    axes.set(xlabel=x_title, ylabel=y_title)
    axes.margins(0.12)
    axes.figure.draw_without_rendering()  # limits and sizes as they will be
    # In typographic points, as labels are.
    at = axes.transData.transform(np.column_stack([xs, ys])) * (72.0 / axes.figure.dpi)
    taken = [_Box(x, y, _MARK, _MARK) for x, y in at]
    for index, (label, x, y) in enumerate(points):
        if not label:
            continue
        here, others = at[index], [*taken[:index], *taken[index + 1 :]]
        boxes = {
            place: _Box(here[0] + place[0], here[1] + place[1], _GLYPH * len(label), _LABEL_HEIGHT)
            for place in _PLACES
        }
        free = [place for place, box in boxes.items() if not any(map(box.meets, others))]
        if free or index < always:
            place = free[0] if free else _PLACES[0]
            taken.append(boxes[place])
            style = {"textcoords": "offset points", "fontsize": 8.5, "color": INK}
            axes.annotate(label, (x, y), xytext=place, ha="center", va="center", **style)


class _Box(NamedTuple):
    """A box by its middle and its size. [typographic points]"""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: _Box) -> bool:
        """Return whether both overlap."""
        across, up = abs(self.x - other.x), abs(self.y - other.y)
        return 2 * across < self.width + other.width and 2 * up < self.height + other.height
