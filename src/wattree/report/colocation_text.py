"""Several processes on each device, as text."""

from __future__ import annotations

from rich.table import Table

from wattree.report.parts import plain_table
from wattree.report.words import percent
from wattree.trace import ColocationUse
from wattree.units import format_bytes, format_time

_SHARING = {"mps": "kernels at once (MPS)", "time-sliced": "in turn"}
_RULES = {
    "fixed-global": "they share the batch",
    "fixed-per-process": "a batch for each",
}


def colocation_title(use: ColocationUse) -> str:
    """Return the heading of the terms."""
    return (
        f"{use.processes_per_device} processes on each device, {_SHARING[use.device_sharing]}, "
        f"{_RULES[use.batch_rule]} ({use.samples_per_process:g} samples each)"
    )


def colocation_table(use: ColocationUse, step_s: float) -> Table:
    """Return where the step of a process goes on a shared device (closed queueing model)."""
    table = plain_table()
    table.add_column(no_wrap=True, min_width=22, style="dim")
    table.add_column()
    rows = (
        ("own kernels", use.device_s, f", which fill {percent(use.fill)} of the device's units"),
        ("host between them", use.host_s, ", in which others compute"),
        ("waiting for others", use.waits_s, ""),
        ("for the last one", use.barrier_s, ", before gradients are averaged"),
        ("averaging, updates", use.update_s, " of all processes of the device"),
    )
    for name, part_s, words in rows:
        share = percent(part_s / step_s) if step_s > 0 else percent(0.0)
        table.add_row(name, f"{format_time(part_s) if part_s else '0 s'} ({share}){words}")
    table.add_row("device in use", f"{percent(use.utilization)} of what it can do at once")
    table.add_row("memory", f"{format_bytes(use.memory_bytes_per_process)} for each process")
    return table
