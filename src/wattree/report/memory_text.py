"""The live tensors at the peak as a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from wattree.report.parts import INDENT, headed_table
from wattree.report.words import NOT_APPLICABLE, percent
from wattree.trace import AllocatorUse, LiveTensors, MemoryUse
from wattree.units import format_bytes


def show_live(memory: MemoryUse, console: Console) -> None:
    """Print the live tensors at the memory peak, largest first, and what an allocator holds."""
    title = f"Live when the memory of {memory.live_on} peaks: {format_bytes(memory.live_bytes)}"
    table = headed_table()
    for head in ("tensor", "of", "what"):
        table.add_column(head)
    for head in ("tensors", "micro-batches", "bytes", "share"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in memory.live:
        table.add_row(*_cells(row, memory.live_bytes))
    console.print()
    console.print(Text(title, style="bold"))
    console.print(Padding(table, INDENT))
    if memory.allocator is not None:
        console.print(Padding(_allocator(memory.allocator), INDENT))


def _cells(row: LiveTensors, total: float) -> tuple[str, ...]:
    return (
        row.name,
        row.block or NOT_APPLICABLE,
        row.category if row.kind == "stored" else f"{row.category}, {row.kind}",
        f"{row.tensors:,}",
        NOT_APPLICABLE if row.micro_batches is None else f"{row.micro_batches:,}",
        format_bytes(row.bytes),
        percent(row.bytes / total),
    )


def _allocator(use: AllocatorUse) -> str:
    played = f"{use.events:,} tensors taken or given back" + (
        "" if use.complete else ", the first of the step's"
    )
    retries = f", {use.retries:,} retries for want of memory" if use.retries else ""
    return (
        f"A model of the {use.name} allocator reserves {format_bytes(use.reserved_bytes)} for "
        f"them, {format_bytes(use.fragmentation_bytes)} beyond the tensors ({played}{retries})."
    )
