"""Live tensors, shared devices and the input pipeline as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from wattree.report.parts import facts_table, headed_table, section
from wattree.report.words import NOT_APPLICABLE, count, percent
from wattree.trace import (
    PART_WORDS,
    AllocatorUse,
    ColocationUse,
    LiveTensors,
    MaterialsUse,
    MemoryUse,
)
from wattree.units import format_bytes, format_time

_SHARING = {"mps": "kernels at once (MPS)", "time-sliced": "in turn"}
_RULES = {
    "fixed-global": "they share the batch",
    "fixed-per-process": "a batch for each",
}


def show_live(memory: MemoryUse, console: Console) -> None:
    """Print the live tensors at the memory peak, largest first, and what an allocator holds."""
    title = f"Tensors at the memory peak of {memory.live_on}: {format_bytes(memory.live_bytes)}"
    heads = ("tensor", "of", "what", "tensors", "micro-batches", "bytes", "share")
    rows = (_cells(row, memory.live_bytes) for row in memory.live)
    table = headed_table(*heads, words=heads[:3], rows=rows)
    more = [] if memory.allocator is None else [_allocator(memory.allocator)]
    section(title, [table, *more], console)


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
    first = "" if use.complete else "first "
    retries = f", {use.retries:,} retries because memory ran out" if use.retries else ""
    return (
        f"The simulated {use.name} allocator reserves {format_bytes(use.reserved_bytes)} for them, "
        f"{format_bytes(use.fragmentation_bytes)} more than they need (over the {first}"
        f"{use.events:,} allocations and frees of a step{retries})."
    )


def colocation_title(use: ColocationUse) -> str:
    """Return the heading of the terms."""
    return (
        f"{use.processes_per_device} processes on each device, {_SHARING[use.device_sharing]}, "
        f"{_RULES[use.batch_rule]} ({use.samples_per_process:g} samples each)"
    )


def colocation_table(use: ColocationUse, step_s: float) -> Table:
    """Return where the step of a process goes on a shared device (closed queueing model)."""
    parts = (
        ("own kernels", use.device_s, f", which fill {percent(use.fill)} of the device's units"),
        ("host between them", use.host_s, ", in which others compute"),
        ("waiting for others", use.waits_s, ""),
        ("for the last one", use.barrier_s, ", before gradients are averaged"),
        ("averaging, updates", use.update_s, " of all processes of the device"),
    )
    rows = []
    for name, part_s, words in parts:
        share = percent(part_s / step_s) if step_s > 0 else percent(0.0)
        rows.append((name, f"{format_time(part_s) if part_s else '0 s'} ({share}){words}"))
    rows.append(("device in use", f"{percent(use.utilization)} of what it can do at once"))
    rows.append(("memory", f"{format_bytes(use.memory_bytes_per_process)} for each process"))
    return facts_table(rows, width=22)


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
    words = {**PART_WORDS, "step": "the step without waits"}
    rates = materials.samples_per_s.items()
    rows = [(words[part], f"{count(rate)} samples/s") for part, rate in rates]
    if materials.is_input_bound:
        rows.append(("waits", f"{percent(materials.exposed_s / step_s)} of the step"))
    rows += [("would help", fix.change) for fix in materials.fixes]
    rows.append(("first micro-batch", f"there {format_time(materials.first_batch_s)} after start"))
    if materials.host_memory_bytes:
        held = f"{format_bytes(materials.host_memory_bytes)} of host memory on a node"
        rows.append(("made ahead", held))
    return facts_table(rows, width=22)
