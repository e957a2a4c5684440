"""`--plot [NAME=]FILE`: the pictures of a report alone, as SVG or PNG."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattree.cli.request import asked
from wattree.errors import JobError

if TYPE_CHECKING:
    from wattree.report.plots import Plot

#: What the commands draw.
STEP_PLOTS = ("step", "timeline", "memory", "power", "links")
RUN_PLOTS = ("step", "memory", "energy")
PLAN_PLOTS = ("front", *RUN_PLOTS)
DESIGN_PLOTS = ("front", "step", "energy")
EXPLAINED_PLOTS = ("step", "differences", "ranks")
VALIDATION_PLOTS = (
    *(
        f"{kind}-{quantity}"
        for quantity in ("step-time-s", "peak-memory-bytes", "average-power-w", "energy-j")
        for kind in ("rows", "sources")
    ),
    "intervals",
)


def plot_option(names: Sequence[str]) -> Any:
    """Return the field of the option of a command that draws these."""
    return asked(
        "[NAME=]FILE",
        f"Write a picture (SVG or PNG), such as {names[0]}.svg or {names[0]}=a.png: "
        f"{', '.join(names[:-1])} or {names[-1]}; may be repeated.",
        "--plot",
    )


def plots_asked(texts: Sequence[str] | None, names: Sequence[str]) -> dict[str, Path]:
    """Return name of a picture → file, as --plot has them.

    Raises:
        JobError: There is no such picture.
        WattreeError: Plotting is not installed, or the file format is not supported.
    """
    if not texts:
        return {}
    from wattree.report.plots import check_plot

    found = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals and Path(text).suffix:  # a file that is called as the picture
            name, file = Path(text).stem, text
        if file:
            check_plot(Path(file), "--plot")
        if name not in names or not file:
            known = ", ".join(names)
            raise JobError("--plot", [f"found '{text}', expected [NAME=]FILE with one of {known}"])
        found[name] = Path(file)
    return found


def write_plots(asked: Mapping[str, Path], plots: Iterable[Plot]) -> None:
    """Write the pictures that were asked for.

    Raises:
        JobError: A result has no such picture: no link is used, or no power is known. The others
            are written.
    """
    from wattree.report.plots import write_plot

    found = {plot.name: plot for plot in plots}
    for name, path in asked.items():
        if name in found:
            write_plot(path, found[name])
    if missing := [name for name in asked if name not in found]:
        raise JobError("--plot", [f"{name}: there is nothing to draw" for name in missing])
