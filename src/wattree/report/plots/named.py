"""Names of parts next to the parts, with thin lines where they do not touch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from wattree.report.plots.figure import GROUND, INK

#: Height of a row of names, and of their letters. [typographic points]
ROW: Final = 11.5
_SIZE: Final = 8.5
#: Between a name and what it must not touch. [typographic points]
_GAP: Final = 2.0
#: Space between axes and the names right of them. [typographic points]
_BESIDE: Final = 10.0
_LINE: Final = {"color": INK, "linewidth": 0.6, "clip_on": False, "zorder": 4}


class NamedSpot(NamedTuple):
    """A part and a point of it, in the units of its axes."""

    name: str
    x: float
    y: float


class NameRows(NamedTuple):
    """Rows of names above what they name.

    Attributes:
        places: Of each name its row, from below, and where it begins. [typographic points]
        rows: How many there are.
        is_clear: No name lies on the line of another.
    """

    places: Sequence[tuple[int, float]]
    rows: int
    is_clear: bool


def rows_above(axes: Any, spots: Sequence[NamedSpot]) -> NameRows:
    """Return rows for the names of spots, from which lines go straight down to the spots."""
    width, low, high = _across(axes)
    left, right = axes.get_xlim()
    lines = [(spot.x - left) / (right - left) * width for spot in spots]
    widths = [_width(spot.name) for spot in spots]
    found: dict[int, tuple[int, float]] = {}
    row, is_clear = 0, True
    while len(found) < len(spots):
        ends: list[tuple[float, float]] = []
        for index in sorted(set(range(len(spots))) - set(found), key=lambda i: -lines[i]):
            waiting = [x for i, x in enumerate(lines) if i not in found and i != index]
            for begin in (lines[index] + _GAP, lines[index] - _GAP - widths[index]):
                end = begin + widths[index]
                box = min(begin - _GAP, lines[index]), max(end + _GAP, lines[index])
                is_free = not any(box[0] <= x <= box[1] for x in waiting) and not any(
                    box[0] < b and a < box[1] for a, b in ends
                )
                if low <= begin and end <= high and is_free:
                    found[index] = row, begin
                    ends.append(box)
                    break
        if not ends:
            is_clear, index = False, min(set(range(len(spots))) - set(found))
            found[index] = row, max(min(lines[index], high - widths[index]), low)
        row += 1
    return NameRows([found[index] for index in range(len(spots))], row, is_clear)


def write_above(axes: Any, spots: Sequence[NamedSpot], rows: NameRows, top: float) -> None:
    """Write names above what they name, each with a line down to its spot.

    Args:
        axes: Whose `y` grows downward, a unit for each typographic point.
        rows: Of each, from `rows_above`.
        top: Lower edge of the lowest row.
    """
    width, _, _ = _across(axes)
    left, right = axes.get_xlim()
    for spot, (row, begin) in zip(spots, rows.places, strict=True):
        y = top - ROW * row
        axes.plot([spot.x, spot.x], [spot.y, y - ROW / 2], **_LINE)
        style = {"fontsize": _SIZE, "color": INK, "va": "bottom", "in_layout": False}
        style |= {"bbox": {**GROUND, "pad": 0.0}, "zorder": 5}  # a line of a limit may be there
        axes.text(left + begin / width * (right - left), y, spot.name, **style)


def write_beside(axes: Any, spots: Sequence[NamedSpot]) -> None:
    """Write names right of the axes, in the order of their spots, each with a line to its spot."""
    low, high = axes.get_ylim()
    style = {"fontsize": _SIZE, "color": INK, "va": "center", "transform": axes.transAxes}
    gap = _BESIDE / _across(axes)[0]
    texts = [axes.text(1.0 + gap, 0.5, spot.name, **style) for spot in spots]
    axes.figure.draw_without_rendering()  # with the names, for which the axes make room
    step = ROW / (axes.bbox.height * 72.0 / axes.figure.dpi)
    heights = [(spot.y - low) / (high - low) for spot in spots]
    ranked = sorted(range(len(spots)), key=lambda i: heights[i])
    places = _spread([heights[i] for i in ranked], step)
    for index, place in zip(ranked, places, strict=True):
        texts[index].set_y(place)
        (x, y), end = spots[index][1:], axes.get_xlim()[1]
        axes.plot((x, end), (y, y), **_LINE, marker="o", markersize=2.4, markevery=[0])
        ends = {"transform": axes.transAxes, **_LINE}
        axes.plot((1.0, 1.0 + 0.9 * gap), (heights[index], place), **ends)


def _spread(wanted: Sequence[float], step: float) -> list[float]:
    """Return ascending places near the wanted ones, a step apart, those at the top within 1."""
    places: list[float] = []
    for place in wanted:
        places.append(max(place, places[-1] + step) if places else max(place, step / 2))
    most = 1.0 - step / 2
    for index in reversed(range(len(places))):
        places[index] = min(places[index], most)
        most = places[index] - step
    return places


def _across(axes: Any) -> tuple[float, float, float]:
    """Return the width of axes, and where the figure begins and ends, from their left edge."""
    point = 72.0 / axes.figure.dpi
    figure, box = axes.figure.bbox, axes.bbox
    return box.width * point, (figure.x0 - box.x0) * point, (figure.x1 - box.x0) * point - _GAP


def _width(text: str) -> float:
    """Return the width of a name. [typographic points]"""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    return float(TextPath((0.0, 0.0), text, prop=FontProperties(size=_SIZE)).get_extents().width)
