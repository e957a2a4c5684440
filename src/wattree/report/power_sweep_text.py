"""A sweep of power limits as text."""

from __future__ import annotations

from rich.console import Console

from wattree.predict.sweep import LimitedStep, PowerSweep
from wattree.report.parts import headed_table
from wattree.report.words import percent
from wattree.units import format_quantity, format_time


def show_power_sweep(sweep: PowerSweep, console: Console) -> None:
    """Print one row per limit, and which of them is best for what."""
    table = headed_table()
    for head in ("limit", "step", "longer", "energy", "saved", "power", "EDP"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for step in sweep.steps:
        table.add_row(
            f"{step.power_limit_w:g} W",
            format_time(step.step_time_s),
            percent(step.slowdown - 1.0),
            format_quantity(step.energy_j, "J"),
            percent(step.energy_saved),
            format_quantity(step.average_power_w, "W"),
            format_quantity(step.energy_delay_js, "J s"),
            _marks(step, sweep),
        )
    console.print(table)
    console.print()
    console.print(
        f"{_least_energy(sweep)} Least energy-delay product (EDP) at "
        f"{sweep.least_energy_delay_w:g} W. Energy with PUE, power before it."
    )


def _least_energy(sweep: PowerSweep) -> str:
    """Return where a step takes least energy, against the highest limit."""
    best = next(s for s in sweep.steps if s.power_limit_w == sweep.least_energy_w)
    where = f"Least energy at {best.power_limit_w:g} W per device"
    if best is sweep.steps[0]:
        return f"{where}, the highest of these limits: no lower one saves any."
    return (
        f"{where}: a step takes {percent(best.energy_saved)} less energy and "
        f"{percent(best.slowdown - 1.0)} more time than at {sweep.steps[0].power_limit_w:g} W."
    )


def _marks(step: LimitedStep, sweep: PowerSweep) -> str:
    marks = []
    if step.power_limit_w == sweep.least_energy_w:
        marks.append("least energy")
    if step.power_limit_w == sweep.least_energy_delay_w:
        marks.append("least EDP")
    return ", ".join(marks)
