"""Measurements and profiles of a machine as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from wattree.report.parts import headed_table
from wattree.trace import MeterReading, Run
from wattree.units import format_quantity, format_time

if TYPE_CHECKING:
    from wattree.measure.profile import MachineProfile


def show_measured(run: Run, peak_w: Mapping[str, float], console: Console) -> None:
    """Print energy and power by domain, unread domains, and problems of the meters.

    Args:
        peak_w: Highest average over a second by domain. [W]
    """
    console.print(_headline(run))
    if run.meters:
        console.print(_table(run, peak_w))
    else:
        console.print("no energy was read")
    for name, share in sorted(run.utilization.items()):
        console.print(f"busy: {name} {share:.0%}")
    for reading in run.meters:
        if reading.note:
            console.print(f"{reading.domain}: {reading.note}", soft_wrap=True)
    for line in run.missing:
        console.print(f"not read: {line}", soft_wrap=True)
    for line in run.notes:
        console.print(f"note: {line}", soft_wrap=True)


def _headline(run: Run) -> str:
    parts = [f"{run.name}: {run.wall_s:.2f} s on {run.node or 'this machine'}"]
    if run.exit_code is None:
        parts.append("interrupted")
    elif run.exit_code:
        parts.append(f"failed with exit code {run.exit_code}")
    return "; ".join(parts)


def _table(run: Run, peak_w: Mapping[str, float]) -> Table:
    rows = [_row(each, run.wall_s, peak_w.get(each.domain)) for each in run.meters]
    rows.append(["total", _number(run.energy_j), _number(run.average_w), "", run.origin, ""])
    heads = ("domain", "energy J", "average W", "peak W", "meter", "updated every")
    return headed_table(*heads, words={"meter"}, rows=rows)


def _row(reading: MeterReading, wall_s: float, peak_w: float | None) -> list[str]:
    is_marked = reading.is_estimate and reading.meter != "estimate"
    period = "" if reading.period_s is None else f"{reading.period_s * 1e3:.0f} ms"
    return [
        reading.domain,
        _number(reading.energy_j),
        _number(reading.energy_j / wall_s),
        "" if peak_w is None else _number(peak_w),
        reading.meter + (" (estimate)" if is_marked else ""),
        period,
    ]


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1e4 else f"{value:,.0f}"


def show_profile(profile: MachineProfile, console: Console) -> None:
    """Print the measurements, the quality of the fit, and the output file."""
    machine, found = profile.machine, profile.findings
    console.print(f"{machine.title}; {machine.software}")
    session = profile.session
    console.print(f"{session.done} of {session.wanted} measurements, {profile.rounds} full rounds")
    console.print()
    peaks = found.peak_flop_per_s.items()
    rows = [(f"products, {each}", format_quantity(peak, "FLOP/s")) for each, peak in peaks]
    rates = headed_table("", "", rows=rows)
    rates.show_header = False
    rates.add_row("memory", format_quantity(found.memory_bytes_per_s, "B/s"))
    if found.bus_bytes_per_s is not None and found.alpha_s is not None:
        rates.add_row("between ranks", format_quantity(found.bus_bytes_per_s, "B/s"))
        rates.add_row("latency of a collective", format_time(found.alpha_s))
    rates.add_row("sample of a batch", format_time(found.collate_s))
    console.print(rates)
    console.print()
    fits = [
        (
            *(fit.family, str(fit.points), f"{fit.spread:.1%}", f"{fit.error:.1%}"),
            "" if fit.held_out is None else f"{fit.held_out:.1%}",
        )
        for fit in found.fits
    ]
    console.print(headed_table("fit", "points", "spread", "error", "held out", rows=fits))
    console.print()
    for path in profile.written:
        console.print(f"wrote {path}", soft_wrap=True)
    calibration = profile.written[0]
    node = next(path for path in profile.written if path.name.endswith(".node.yaml"))
    console.print(
        f"A job names the machine by 'cluster: {{node: ./{node.name}}}'; predict with "
        f"'wattree simulate JOB --calibration {calibration}'.",
        soft_wrap=True,
    )
