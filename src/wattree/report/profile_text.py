"""A profile of a machine, and a refit by runs, as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from wattree.measure.profile import MachineProfile
from wattree.report.words import percent
from wattree.units import format_quantity, format_time
from wattree.validation.refit import Refit


def show_profile(profile: MachineProfile, console: Console) -> None:
    """Print the measurements, the quality of the fit, and the output file."""
    machine, found = profile.machine, profile.findings
    console.print(f"{machine.title}; {machine.software}")
    session = profile.session
    console.print(f"{session.done} of {session.wanted} measurements, {profile.rounds} full rounds")
    console.print()
    rates = _table("", "")
    for precision, peak in found.peak_flop_per_s.items():
        rates.add_row(f"products, {precision}", format_quantity(peak, "FLOP/s"))
    rates.add_row("memory", format_quantity(found.memory_bytes_per_s, "B/s"))
    if found.bus_bytes_per_s is not None and found.alpha_s is not None:
        rates.add_row("between ranks", format_quantity(found.bus_bytes_per_s, "B/s"))
        rates.add_row("latency of a collective", format_time(found.alpha_s))
    rates.add_row("sample of a batch", format_time(found.collate_s))
    console.print(rates)
    console.print()
    fits = _table("fit", "points", "spread", "error", "held out")
    for fit in found.fits:
        held = "" if fit.held_out is None else f"{fit.held_out:.1%}"
        fits.add_row(fit.family, str(fit.points), f"{fit.spread:.1%}", f"{fit.error:.1%}", held)
    console.print(fits)
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


def show_refit(refit: Refit, console: Console) -> None:
    """Print the scales, and each run's times before and after."""
    scales = _table("scale", "", "of")
    for scale in refit.scales:
        scales.add_row(scale.name, f"{scale.factor:.3f}", scale.what)
    console.print(scales)
    console.print()
    table = _table("run", "time of a step", "measured", "before", "", "after", "")
    for run in refit.runs:
        for place, row in enumerate(run.rows):
            table.add_row(
                run.name if place == 0 else "",
                row.what,
                format_time(row.measured_s),
                format_time(row.before_s),
                percent(row.before_s / row.measured_s - 1.0) if row.measured_s else "",
                format_time(row.after_s),
                percent(row.after_s / row.measured_s - 1.0) if row.measured_s else "",
            )
    console.print(table)
    console.print()
    console.print(
        f"Step time: mean error {refit.error_before:.1%} before, {refit.error_after:.1%} after."
    )
    console.print(f"wrote {refit.written}", soft_wrap=True)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=any(heads))
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right", no_wrap=place == 0)
    return table
