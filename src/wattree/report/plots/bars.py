"""Bar charts of sums, link loads, and strategies by two quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from wattree.report.plots.figure import INK, SERIES, label_end, part_colors
from wattree.report.plots.named import ROW, NamedSpot, rows_above, write_above
from wattree.report.words import part_in_words
from wattree.trace import Trace

#: Kinds of links that are drawn.
_LINKS: Final = 10
#: Parts below this share of the longest bar are one, as names at lines need room.
_THIN: Final = 0.008
_OTHER: Final = "other parts"
_PALE: Final = "#bbbbbb"
#: Height of a bar, what is free above it, and what lies below all. [typographic points]
_BAR: Final = 18.0
_BETWEEN: Final = 12.0
_BELOW: Final = 42.0
#: Width of a picture in longest bars, in the order of trying: wider ones have more room for names.
_ROOMS: Final = (1.14, 1.4, 1.9, 3.0)
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
#: Points beyond which those that are not the best are one image: shapes would be megabytes.
_MOST_SHAPES: Final = 300
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
    """Draw a bar for each sum, made of its parts with their names, the total at its end."""
    sums = {name: _merged(parts, bars) for name, parts in bars.parts.items()}
    totals = [sum(parts.values()) for parts in sums.values()]
    limit = (bars.limit or 0.0) / bars.scale
    longest = max([*totals, limit]) or 1.0
    axes.set(xlabel=f"{bars.quantity} [{bars.unit}]", yticks=range(len(sums)), yticklabels=sums)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0.0)
    for room in _ROOMS:
        axes.set_xlim(0.0, room * longest)
        axes.figure.draw_without_rendering()  # widths as they will be
        named = [rows_above(axes, spots) for spots in _spots(sums, longest)]
        if all(rows.is_clear for rows in named):
            break
    middles, bottom = [], 0.0
    colors = {_OTHER: _PALE} | part_colors(
        list(dict.fromkeys(part for parts in sums.values() for part in parts if part != _OTHER)),
        bars.known,
    )
    for parts, spots, rows in zip(sums.values(), _spots(sums, longest), named, strict=True):
        top = bottom + _BETWEEN + ROW * rows.rows
        middles.append(top + _BAR / 2)
        left = 0.0
        for part, width in parts.items():
            axes.barh(middles[-1], width, left=left, color=colors[part], height=_BAR)
            left += width
        inside = [spot._replace(y=top + 4.0) for spot in spots]
        write_above(axes, inside, rows, top - 5.0)
        # Beyond the line of the limit where it would be written across that.
        at = limit if 0.0 < limit - left < _LABEL * longest else left
        label_end(axes, at, middles[-1], f"{_three_digits(left)} {bars.unit}")
        bottom = top + _BAR
    if bars.limit is not None:
        axes.vlines(limit, middles[0] - _BAR, bottom, color=INK, linewidth=1.0, linestyle="--")
    axes.set_yticks(middles, list(sums))
    axes.set_ylim(bottom + _BETWEEN / 2, 0.0)
    axes.figure.set_figheight((bottom + _BETWEEN / 2 + _BELOW) / 72.0)


def _merged(parts: Mapping[str, float], bars: Bars) -> dict[str, float]:
    """Return the parts of a bar in its unit; several that are too thin to be named are one."""
    longest = max([*(sum(each.values()) for each in bars.parts.values()), bars.limit or 0.0])
    thin = {
        part
        for part in dict.fromkeys(part for each in bars.parts.values() for part in each)
        if max(each.get(part, 0.0) for each in bars.parts.values()) < _THIN * longest
    }
    shown = {p: amount / bars.scale for p, amount in parts.items() if amount and p not in thin}
    rest = sum(parts.get(part, 0.0) for part in thin) / bars.scale
    return shown | ({_OTHER: rest} if rest else {})


def _spots(sums: Mapping[str, Mapping[str, float]], longest: float) -> list[list[NamedSpot]]:
    """Return what is named above each bar: every part once, at the first bar that shows it."""
    found, named = [], set()
    for parts in sums.values():
        spots, left = [], 0.0
        for part, width in parts.items():
            most = max(each.get(part, 0.0) for each in sums.values())
            if part not in named and width >= min(most, _THIN * longest):
                named.add(part)
                spots.append(NamedSpot(part_in_words(part), left + width / 2, 0.0))
            left += width
        found.append(spots)
    return found


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
        points: Of each its label and the two quantities, best first. Those without a label are
            drawn gray.
        x_title, y_title: Quantities with their units.
        always: Points whose labels are written in any case; others where they have room.
    """
    xs, ys = np.array([x for _, x, _ in points]), np.array([y for _, _, y in points])
    colors = [SERIES[0] if label else _GRAY for label, _, _ in points]
    many = len(points) > _MOST_SHAPES
    axes.scatter(xs[1:], ys[1:], color=colors[1:], s=36, rasterized=many)
    axes.scatter(xs[:1], ys[:1], color=SERIES[5], s=64, marker="D", zorder=3)
    axes.set(xlabel=x_title, ylabel=y_title)
    axes.margins(0.12)
    axes.figure.draw_without_rendering()  # limits and sizes as they will be
    # In typographic points, as labels are.
    at = axes.transData.transform(np.column_stack([xs, ys])) * (72.0 / axes.figure.dpi)
    taken = [_Box(x, y, _MARK, _MARK) for x, y in at]
    left = axes.bbox.x0 * (72.0 / axes.figure.dpi)  # beyond it stand the numbers of the axis
    for index, (label, x, y) in enumerate(points):
        if not label:
            continue
        here, others = at[index], [*taken[:index], *taken[index + 1 :]]
        boxes = {
            place: _Box(here[0] + place[0], here[1] + place[1], _GLYPH * len(label), _LABEL_HEIGHT)
            for place in _PLACES
        }
        inside = {p: box for p, box in boxes.items() if box.x - box.width / 2 > left}
        free = [place for place, box in inside.items() if not any(map(box.meets, others))]
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
