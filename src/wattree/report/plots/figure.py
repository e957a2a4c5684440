"""Figures as SVG and PNG. Needs matplotlib, whose text stays text in SVG."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from wattree.errors import OutputError, check_packages
from wattree.files import write_atomic

#: Colors that stay apart in gray and for the color-blind (Okabe and Ito, 2008), in the order in
#: which series take them.
SERIES: Final = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#f0e442"),
    *("#882255", "#44aa99", "#332288"),
)
#: What is drawn in the color of the page's text, of its lines, and of the page itself.
INK, _LINE, PAPER = "#1b1f24", "#c9d1d9", "#fffffe"
#: Behind words that would otherwise stand on a color or a line.
GROUND: Final = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
#: Ending of a file → format.
_FORMATS: Final = {".svg": "svg", ".png": "png"}
_WIDTH_IN: Final = 9.0
_NARROW_IN: Final = 3.8
#: Digits of coordinates that no one sees, and that are half of an SVG.
_MORE_DIGITS: Final = re.compile(r"(\d\.\d\d)\d+")
_TAG: Final = re.compile(r"<[^>]*>")
#: Units of an axis of times: seconds, name.
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
#: Units of an axis of energies: joules, name.
_JOULES: Final = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture, drawn when it is asked for.

    Attributes:
        name: The name that selects it.
        title: The heading above it.
        summary: The same in words, for readers who do not see it.
        draw: Draws it on the axes of a figure.
        height_in: Height of the figure. [inch]
        is_wide: It needs the whole width of a page; others stand in columns.
    """

    name: str
    title: str
    summary: str
    draw: Callable[[Any], None]
    height_in: float = 3.2
    is_wide: bool = False

    def svg(self, *, is_narrow: bool = False) -> str:
        """Return it as an element of a page: it takes the page's width and its colors of text.

        Args:
            is_narrow: For narrow windows, in which a wide one's text would be too small.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        text = _saved(self, "svg", width_in=_NARROW_IN if is_narrow else _WIDTH_IN).decode("utf-8")
        text = text[text.index("<svg") :]
        # In tags alone: words between them may be numbers that people read.
        text = _TAG.sub(lambda tag: _MORE_DIGITS.sub(r"\1", tag[0]), text)
        # Ids of two pictures of a page must differ.
        prefix = f"{self.name}-{'narrow-' if is_narrow else ''}"
        text = re.sub(r'((?:id="|href="#|url\(#))', rf"\g<1>{prefix}", text)
        text = text.replace(INK, "currentColor").replace(_LINE, "var(--line)")
        text = text.replace(PAPER, "var(--page)")
        return re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)

    def link(self) -> str:
        """Return an address that holds it as a file of its own, PNG in black on white.

        An SVG of a timeline is several times as large.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        content = base64.b64encode(_saved(self, "png", title=self.title)).decode("ascii")
        return f"data:image/png;base64,{content}"


def check_plot(path: Path | None, option: str) -> None:
    """Raise an error before any work if matplotlib is missing or the file ending is unsupported.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The name ends in neither `.svg` nor `.png`.
    """
    if path is None:
        return
    if path.suffix.lower() not in _FORMATS:
        expected = " or ".join(_FORMATS)
        raise OutputError(f"{option}: found '{path}', expected a name that ends in {expected}")
    _figure_class()


def write_plot(path: Path, plot: Plot) -> None:
    """Write a picture; the ending of the name decides between SVG and PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written.
    """
    write_atomic(path, _saved(plot, _FORMATS[path.suffix.lower()], title=plot.title))


def _saved(plot: Plot, form: str, *, title: str = "", width_in: float = _WIDTH_IN) -> bytes:
    figure_class = _figure_class()
    from matplotlib import rc_context

    content = BytesIO()
    with rc_context(_style()):
        figure = figure_class(figsize=(width_in, plot.height_in), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        plot.draw(axes)
        if width_in < _WIDTH_IN:  # a long title ends with its axis instead of being cut
            axes.xaxis.label.set(x=1.0, ha="right")
        if title:
            axes.set_title(title)
        metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(content, format=form, dpi=150, metadata=metadata, transparent=form == "svg")
    return content.getvalue()


def _style() -> Any:
    return {
        "svg.fonttype": "none",
        "text.parse_math": False,  # names are text, whatever signs they have
        "svg.hashsalt": "wattree",  # the same picture is the same text
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.5,
        "axes.edgecolor": _LINE,
        "axes.titlesize": 11,
        "path.simplify": True,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.titlecolor"), INK
        ),
    }


def _figure_class() -> Any:
    """Return a figure that draws into files, with no window and no state of pyplot."""
    check_packages("matplotlib", needed_for="a picture", extra="report")
    from matplotlib.figure import Figure

    return Figure


def label_end(axes: Any, value: float, row: float, text: str) -> None:
    """Write at the end of a horizontal bar, on the side away from zero."""
    axes.annotate(
        text,
        (value, row),
        xytext=(4 if value >= 0 else -4, 0),
        textcoords="offset points",
        va="center",
        ha="left" if value >= 0 else "right",
        fontsize=9,
    )


def is_narrow(axes: Any) -> bool:
    """Return whether they are drawn for a column or a narrow window."""
    return bool(axes.figure.get_figwidth() < _WIDTH_IN)


def part_colors(parts: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Return the color of each part: the same in every picture that shows the part.

    Args:
        known: All parts of its kind, in the order in which they take colors. Others, and those
            beyond the colors, take what is left.
    """
    found: dict[str, str] = {}
    for part in sorted(parts, key=lambda part: known.index(part) if part in known else len(known)):
        index = known.index(part) % len(SERIES) if part in known else 0
        order = [*SERIES[index:], *SERIES[:index]]
        found[part] = next((each for each in order if each not in found.values()), order[0])
    return found


def time_unit(largest_s: float) -> tuple[float, str]:
    """Return the unit of an axis of times up to the largest: its seconds, and its name."""
    return next(((scale, unit) for scale, unit in _TIMES if largest_s >= scale), _TIMES[-1])


def energy_unit(largest_j: float) -> tuple[float, str]:
    """Return the unit of an axis of energies up to the largest: its joules, and its name."""
    return next(((scale, unit) for scale, unit in _JOULES if largest_j >= scale), _JOULES[-1])
