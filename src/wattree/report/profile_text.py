"""A profile of a machine as text."""

from __future__ import annotations

from rich.console import Console

from wattree.measure.profile import MachineProfile
from wattree.report.parts import headed_table
from wattree.units import format_quantity, format_time


def show_profile(profile: MachineProfile, console: Console) -> None:
    """Print the measurements, the quality of the fit, and the output file."""
    machine, found = profile.machine, profile.findings
    console.print(f"{machine.title}; {machine.software}")
    session = profile.session
    console.print(f"{session.done} of {session.wanted} measurements, {profile.rounds} full rounds")
    console.print()
    rates = headed_table("", "")
    rates.show_header = False
    for precision, peak in found.peak_flop_per_s.items():
        rates.add_row(f"products, {precision}", format_quantity(peak, "FLOP/s"))
    rates.add_row("memory", format_quantity(found.memory_bytes_per_s, "B/s"))
    if found.bus_bytes_per_s is not None and found.alpha_s is not None:
        rates.add_row("between ranks", format_quantity(found.bus_bytes_per_s, "B/s"))
        rates.add_row("latency of a collective", format_time(found.alpha_s))
    rates.add_row("sample of a batch", format_time(found.collate_s))
    console.print(rates)
    console.print()
    fits = headed_table("fit", "points", "spread", "error", "held out")
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
