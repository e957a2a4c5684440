"""The input pipeline as text: the rate of each part, and remedies."""

from __future__ import annotations

from rich.table import Table

from wattree.report.parts import plain_table
from wattree.report.words import count, percent
from wattree.trace import PART_WORDS, MaterialsUse
from wattree.units import format_bytes, format_time


def loading_title(materials: MaterialsUse) -> str:
    """Return in a line whether the step waits for its data, and for which part."""
    if not materials.is_input_bound:
        return "Loading data: hidden behind the step"
    return (
        f"Loading data: the step waits {format_time(materials.exposed_s)} for "
        f"{PART_WORDS[materials.bound]}"
    )


def loading_table(materials: MaterialsUse, step_s: float) -> Table:
    """Return the rate of each part, and the resources needed to avoid waiting."""
    table = plain_table()
    table.add_column(no_wrap=True, min_width=22)
    table.add_column()
    for part, rate in materials.samples_per_s.items():
        name = "the step without waits" if part == "step" else PART_WORDS[part]
        table.add_row(name, f"{count(rate)} samples/s")
    if materials.is_input_bound:
        table.add_row("waits", f"{percent(materials.exposed_s / step_s)} of the step")
    for fix in materials.fixes:
        table.add_row("would help", fix.change)
    table.add_row("first micro-batch", f"there {format_time(materials.first_batch_s)} after start")
    if materials.host_memory_bytes:
        held = f"{format_bytes(materials.host_memory_bytes)} of host memory on a node"
        table.add_row("made ahead", held)
    return table
