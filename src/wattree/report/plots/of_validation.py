"""Pictures of predictions and measurements: each row, and errors by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from wattree.report.plots.figure import INK, SERIES, Plot, label_end
from wattree.units import counted
from wattree.validation import ALL_SOURCES
from wattree.validation.score import interval_coverage
from wattree.validation.table import QUANTITY_TITLES

if TYPE_CHECKING:
    from wattree.validation import Scored, Summary, Validation

#: Quantity → factor from SI, and what the axis says.
_UNITS: Final[Mapping[str, tuple[float, str]]] = {
    "step_time_s": (1.0, "s"),
    "peak_memory_bytes": (2.0**-30, "GiB"),
    "average_power_w": (1e-3, "kW"),
    "energy_j": (1e-3, "kJ"),
}
#: Sources with the largest errors that are drawn.
_SOURCES: Final = 16
#: Share of values that intervals should contain, and what a label takes. [%]
_LEVEL: Final = 80.0
_LABEL: Final = 10.0
#: Rows of a class of evidence that are worth a bar.
_FEW_ROWS: Final = 5


def validation_plots(found: Validation) -> list[Plot]:
    """Return two pictures of each quantity, and one of the intervals."""
    plots = []
    for quantity, sources in found.summary.items():
        rows = [
            each
            for each in found.scored
            if each.quantity == quantity and each.counts and each.error is not None
        ]
        each = {name: errors for name, errors in sources.items() if name != ALL_SOURCES}
        each = {name: errors for name, errors in each.items() if errors.mean_abs_error is not None}
        if not rows:
            continue
        title = QUANTITY_TITLES.get(quantity, quantity)
        plots.append(
            Plot(
                name=f"rows-{quantity.replace('_', '-')}",
                title=f"{title}: predicted against measured",
                summary=f"{counted(len(rows), 'row')}; on the line a prediction is exact, between "
                "the thin ones within 10 %.",
                draw=partial(_draw_rows, rows=rows, quantity=quantity),
                height_in=4.2,
            )
        )
        if len(each) > 1:
            plots.append(
                Plot(
                    name=f"sources-{quantity.replace('_', '-')}",
                    title=f"{title}: mean error by source, largest first",
                    summary="In parentheses: number of rows. The table below has all sources.",
                    draw=partial(_draw_sources, sources=each),
                    height_in=1.0 + 0.28 * min(len(each), _SOURCES),
                )
            )
    coverage = {
        f"{QUANTITY_TITLES.get(quantity, quantity)}, {name} ({rows})": 100 * share
        for quantity, classes in interval_coverage(found.scored).items()
        for name, (share, rows) in classes.items()
        if rows >= _FEW_ROWS
    }
    if coverage:
        plots.append(
            Plot(
                name="intervals",
                title="Measured values inside their 80 % intervals, by class of evidence",
                summary="In parentheses: number of rows. Beyond the line at 80 %, intervals are "
                "wider than necessary; short of it, too narrow.",
                draw=partial(_draw_coverage, coverage=coverage),
                height_in=1.0 + 0.28 * len(coverage),
                is_wide=True,
            )
        )
    return plots


def _draw_rows(axes: Any, rows: Sequence[Scored], quantity: str) -> None:
    from matplotlib.ticker import LogFormatter

    factor, unit = _UNITS.get(quantity, (1.0, "SI"))
    measured = [factor * (each.measured or 0.0) for each in rows]
    predicted = [factor * (each.predicted or 0.0) for each in rows]
    ends = [min(measured) / 1.3, max(measured) * 1.3]
    axes.plot(ends, ends, color=INK, linewidth=1.0)
    for share in (0.9, 1.1):
        axes.plot(ends, [share * end for end in ends], color=SERIES[6], linewidth=0.7)
    axes.scatter(measured, predicted, s=14, color=SERIES[0], alpha=0.6, linewidths=0)
    axes.set(xscale="log", yscale="log", xlabel=f"measured [{unit}]", ylabel=f"predicted [{unit}]")
    for axis in (axes.xaxis, axes.yaxis):  # plain numbers, no powers of ten
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter())


def _draw_sources(axes: Any, sources: Mapping[str, Summary]) -> None:
    ordered = sorted(sources.items(), key=lambda item: -(item[1].mean_abs_error or 0.0))
    names = [f"{name} ({errors.count})" for name, errors in ordered[:_SOURCES]]
    errors = [100 * (each.mean_abs_error or 0.0) for _, each in ordered[:_SOURCES]]
    axes.barh(names, errors, color=SERIES[0], height=0.6)
    for row, error in enumerate(errors):
        label_end(axes, error, row, f"{error:.1f}")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="mean absolute error [%]")


def _draw_coverage(axes: Any, coverage: Mapping[str, float]) -> None:
    axes.barh(list(coverage), list(coverage.values()), color=SERIES[0], height=0.6)
    for row, share in enumerate(coverage.values()):
        at = _LEVEL if _LEVEL - _LABEL < share < _LEVEL else share  # clear of the line
        label_end(axes, at, row, f"{share:.0f}")
    axes.axvline(_LEVEL, color=INK, linewidth=1.0, linestyle="--")
    axes.invert_yaxis()
    axes.set(xlim=(0.0, 112.0), xlabel="inside their interval [%]")
