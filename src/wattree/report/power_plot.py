"""Power over a step as a picture: what draws it, part upon part. Needs matplotlib."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from wattree.errors import MissingExtraError, OutputError
from wattree.files import write_atomic
from wattree.report.words import COMPONENT_WORDS
from wattree.trace import COMPONENTS, PowerOverTime

#: Colors that stay apart in gray and for the color-blind (Okabe and Ito, 2008).
_COLORS = {
    "device_static": "#0072B2",
    "device_dynamic": "#E69F00",
    "host_processors": "#88CCEE",
    "host_memory": "#332288",
    "host_adapters": "#882255",
    "host_rest": "#999999",
    "host_idle": "#999999",
    "host_training": "#56B4E9",
    "host_loading": "#009E73",
    "storage": "#F0E442",
    "fans": "#44AA99",
    "conversion": "#D55E00",
    "switch": "#CC79A7",
}


def check_plotting(path: Path) -> None:
    """Refuse a picture, before any work, where matplotlib is missing or the name is of no PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The name does not end in `.png`.
    """
    if path.suffix.lower() != ".png":
        raise OutputError(f"--power-plot: found '{path}', expected a name that ends in .png")
    _figure_class()


def write_power_plot(path: Path, power: PowerOverTime, *, title: str) -> None:
    """Write power over the step by component, what flows whatever runs at the bottom.

    Args:
        path: A `.png` file.
        power: Of the job, before PUE.
        title: Above the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: The file cannot be written.
    """
    figure = _figure_class()(figsize=(9, 4.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    # What changes over the step lies on top of what does not.
    names = [name for name in COMPONENTS if name in power.by_component]
    names.sort(key=lambda name: bool(np.ptp(power.by_component[name])))
    bins = max(len(power.by_component[name]) for name in names) if names else 0
    times, time_unit = _scaled(np.arange(bins + 1) * power.width_s, (1.0, 1e-3, 1e-6), "s")
    curves = np.array([power.by_component[name] for name in names]).reshape(len(names), bins)
    curves, unit = _scaled(curves, (1e9, 1e6, 1e3, 1.0), "W")
    below = np.zeros(bins)
    for name, watts in zip(names, curves, strict=True):
        axes.stairs(
            below + watts,
            times,
            baseline=below,
            fill=True,
            color=_COLORS[name],
            label=COMPONENT_WORDS.get(name, name),
        )
        below = below + watts
    axes.set(
        title=title,
        xlabel=f"time in the step [{time_unit}]",
        ylabel=f"power before PUE [{unit}]",
        xlim=(0.0, times[-1] if bins else 1.0),
        ylim=(0.0, float(below.max(initial=0.0)) * 1.05 or 1.0),
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    content = BytesIO()
    try:
        figure.savefig(content, format="png", metadata={"Software": None})
    except ValueError as error:
        raise OutputError(f"{path}: cannot be drawn: {error}") from error
    write_atomic(path, content.getvalue())


def _scaled(values: Any, scales: tuple[float, ...], unit: str) -> tuple[Any, str]:
    """Return values in the largest unit that the largest of them reaches, and its name."""
    prefixes = {1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "µ"}
    most = float(np.max(values, initial=0.0))
    scale = next((each for each in scales if most >= each), scales[-1])
    return values / scale, f"{prefixes[scale]}{unit}"


def _figure_class() -> Any:
    """Return a figure that draws into files, with no window and no state of pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            needed_for="a picture of power (--power-plot)", package="matplotlib", extra="report"
        ) from error
    return Figure
