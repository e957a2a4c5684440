"""Pictures of a schedule: nodes over time, power over time, and what energy costs or emits then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wattree.report.plots.figure import GROUND, INK, SERIES, Plot, is_narrow
from wattree.report.words import watts
from wattree.schedule.schedule_result import busy
from wattree.units import JOULES_PER_KWH, counted, format_time, spans

if TYPE_CHECKING:
    from wattree.schedule import QueueSchedule

_HOUR_S: Final = 3600.0
_DAYS_FROM_S: Final = 4 * 86_400.0
#: A letter of a name as a share of the width, on wide and on narrow axes.
_LETTER: Final = 0.01
_NARROW_LETTER: Final = 0.02


def schedule_plots(schedule: QueueSchedule) -> list[Plot]:
    """Return the pictures: nodes, power, and carbon or price by the hour where they change."""
    end = format_time(schedule.totals.makespan_s)
    nodes = schedule.queue.cluster.nodes
    plots = [
        Plot(
            name="nodes",
            title="Jobs on nodes over time",
            summary=f"{counted(len(schedule.jobs), 'job')} on {counted(nodes, 'node')} until "
            f"{end}. Dotted lines are deadlines; the table below has the same.",
            draw=lambda axes: _draw_nodes(axes, schedule),
            height_in=min(1.4 + 0.35 * nodes, 6.0),
            is_wide=True,
        ),
        Plot(
            name="power",
            title="Power of all nodes, with PUE",
            summary=f"At most {watts(float(_power(schedule)[1].max()))}.",
            draw=lambda axes: _draw_power(axes, schedule),
            height_in=2.4,
            is_wide=True,
        ),
    ]
    series = schedule.queue.terms.series
    if series is not None:
        by_cost = schedule.queue.objective.value == "cost"
        price = series.price_usd_per_j is not None and (by_cost or not series.carbon_gco2e_per_j)
        hourly = series.price_usd_per_j if price else series.carbon_gco2e_per_j
        assert hourly is not None
        plots.append(
            Plot(
                name="hours",
                title="Price of energy by the hour" if price else "Carbon intensity by the hour",
                summary=f"{series.name}, from the beginning of the queue.",
                draw=lambda axes: _draw_hours(axes, schedule, hourly, "USD" if price else "gCO2e"),
                height_in=2.0,
                is_wide=True,
            )
        )
    return plots


def _scale(schedule: QueueSchedule) -> tuple[float, str]:
    """Return the unit of the axis of time: its seconds, and its name."""
    return (86_400.0, "d") if schedule.totals.makespan_s >= _DAYS_FROM_S else (_HOUR_S, "h")


def _time_axis(axes: Any, schedule: QueueSchedule) -> float:
    scale, unit = _scale(schedule)
    axes.set(xlabel=f"time from the beginning of the queue [{unit}]")
    axes.set_xlim(0.0, 1.02 * schedule.totals.makespan_s / scale)
    return scale


def _draw_nodes(axes: Any, schedule: QueueSchedule) -> None:
    scale = _time_axis(axes, schedule)
    letter = _NARROW_LETTER if is_narrow(axes) else _LETTER
    for number, job in enumerate(schedule.jobs):
        start, length = job.start_s / scale, (job.end_s - job.start_s) / scale
        for first, last in spans(job.nodes):
            axes.broken_barh(
                [(start, length)],
                (first - 0.45, last - first + 0.9),
                facecolor=SERIES[number % len(SERIES)],
                alpha=0.75,
            )
        first, last = spans(job.nodes)[0]
        whole = schedule.totals.makespan_s / scale
        width = len(job.name) * letter * whole
        if length >= width:
            x, name, side = start + length / 2, job.name, "center"
        elif start + length + width <= whole:
            x, name, side = start + length, f" {job.name}", "left"
        else:
            x, name, side = start, f"{job.name} ", "right"
        axes.text(
            x,
            (first + last) / 2,
            name,
            ha=side,
            va="center",
            fontsize=8.5,
            color="#000000" if side == "center" else INK,
            **({} if side == "center" else {"bbox": GROUND}),
            clip_on=True,
        )
        if job.deadline_s is not None and job.deadline_s <= 1.02 * schedule.totals.makespan_s:
            axes.plot(
                [job.deadline_s / scale] * 2,
                [first - 0.45, last + 0.45],
                color="#d55e00" if job.late_s else INK,
                ls=":",
            )
    nodes = schedule.queue.cluster.nodes
    axes.set(ylabel="node", ylim=(nodes - 0.5, -0.5))
    axes.yaxis.get_major_locator().set_params(integer=True)


def _power(schedule: QueueSchedule) -> tuple[Any, Any]:
    """Return moments at which power changes, and the power from each on. [s], [W]"""
    moments = {0.0, *(t for job in schedule.jobs for t in (job.start_s, job.end_s))}
    times_s = np.array(sorted(moments))
    return times_s, busy(schedule, times_s)[1]


def _draw_power(axes: Any, schedule: QueueSchedule) -> None:
    scale = _time_axis(axes, schedule)
    times_s, power_w = _power(schedule)
    axes.stairs(power_w[:-1] / 1e3, times_s / scale, fill=True, color=SERIES[0], alpha=0.75)
    cap_w = schedule.queue.power_cap_w
    top = power_w.max() / 1e3
    if cap_w is not None:
        axes.axhline(cap_w / 1e3, color=INK, lw=1, ls="--")
        axes.annotate(
            "cap", (axes.get_xlim()[1], cap_w / 1e3), ha="right", va="bottom", fontsize=8.5
        )
        top = max(top, cap_w / 1e3)
    axes.set(ylabel="power [kW]", ylim=(0.0, 1.12 * top))


def _draw_hours(axes: Any, schedule: QueueSchedule, hourly: tuple[float, ...], unit: str) -> None:
    scale = _time_axis(axes, schedule)
    hours = int(np.ceil(schedule.totals.makespan_s / _HOUR_S))
    shown = np.array([hourly[hour % len(hourly)] for hour in range(hours)]) * JOULES_PER_KWH
    axes.stairs(shown, np.arange(hours + 1) * _HOUR_S / scale, color=SERIES[2], lw=1.5)
    axes.set(ylabel=f"{unit}/kWh", ylim=(min(0.0, shown.min()), 1.1 * shown.max()))
