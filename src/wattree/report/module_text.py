"""A captured module as a table of its tree, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from wattree.capture import ModuleRow, Recording, module_rows
from wattree.report.words import quantity

_HEADS = (
    *("values", "FLOP\nforward", "\nto input", "\nto weight"),
    *("bytes\nread", "\nwritten", "\nkept"),
)


def module_table(recording: Recording, *, depth: int) -> Table:
    """Return a row per module down to a level of the tree; each includes the modules below it."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("module", overflow="fold")
    for head in _HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    for row in module_rows(recording):
        if not row.path or row.path.count(".") < depth:
            table.add_row(_name(row), *_values(row))
    table.caption = Text(_caption(recording), "dim")
    table.caption_justify = "left"
    return table


def as_json(recording: Recording) -> dict[str, Any]:
    """Return the tree with all quantities in SI, and how it was recorded."""
    return {
        "name": recording.name,
        "batch": recording.batch,
        "sequence": recording.sequence,
        "how": recording.how,
        "operators": len(recording.operators),
        "tied": dict(recording.tied),
        "recomputed_flop": recording.recomputed_flop.value(
            micro_batch=recording.batch, sequence=recording.sequence or 1
        ),
        "modules": [asdict(row) for row in module_rows(recording)],
        "warnings": list(recording.warnings),
    }


def _name(row: ModuleRow) -> str:
    indent = "  " * (row.path.count(".") + 1) if row.path else ""
    return f"{indent}{row.path.rpartition('.')[2]} {row.kind}" if row.path else row.kind


def _values(row: ModuleRow) -> tuple[str, ...]:
    flop = (row.forward_flop, row.input_gradient_flop, row.weight_gradient_flop)
    moved = (row.read_bytes, row.written_bytes, row.saved_bytes)
    return (
        *(quantity(value, "").strip() for value in (row.parameters, *flop)),
        *(quantity(value, "B") for value in moved),
    )


def _caption(recording: Recording) -> str:
    parts = [f"{len(recording.operators)} operators", f"batch {recording.batch}"]
    if recording.sequence is not None:
        parts.append(f"sequence length {recording.sequence}")
    return f"{', '.join(parts)}; recorded on {recording.how}. FLOP are those of matmuls."
