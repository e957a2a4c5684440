"""Measured memory against two ways to reckon with the allocator: constants, or a model of it.

    python -m benchmarks.memory [ROWS.csv] [--json P]

Every core row of memory is simulated once. Then the constants of each way are fitted to all rows by
least absolute relative errors, and the errors that remain are printed by source:

- `constants`: tensors, a share and a constant for what is reserved, a constant for what is
  allocated, the context of each architecture (five, as `validation/memory_fit.py` has them);
- a model of an allocator (`sim/allocator.py`) in place of the share and the constant for what is
  reserved: one constant for all kinds and the contexts are left (three).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy.optimize import lsq_linear

from benchmarks.frame import plain_table
from wattree.accounts.reserved import reserved_for
from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.errors import WattreeError
from wattree.predict import predicted, setting_of
from wattree.validation.express import express
from wattree.validation.measurement import measurement
from wattree.validation.rows import MeasuredRow, bundled_rows, read_rows

MODELS = ("caching", "expandable")
CONTEXTS = ("ampere", "volta")
_ROUNDS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured row with what its simulation holds. [B]"""

    source: str
    kind: str
    architecture: str
    measured: float
    tensors: float
    reserved: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, nargs="?", help="CSV of measured rows; the bundled ones")
    parser.add_argument("--json", type=Path, dest="json_path")
    options = parser.parse_args(arguments)
    measured = read_rows(options.rows) if options.rows else bundled_rows()
    rows = simulated(list(measured))
    found = {"constants": remaining(rows, None)}
    found |= {f"{name} allocator": remaining(rows, name) for name in MODELS}
    _show(rows, found)
    if options.json_path:
        figures = {name: {"constants": c, "errors": e} for name, (c, e) in found.items()}
        options.json_path.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


def simulated(measured: Sequence[MeasuredRow]) -> list[Row]:
    """Return the core rows of memory that can be expressed, each distinct job simulated once."""
    constants = load_calibration(None)
    done: dict[str, tuple[float, dict[str, float]]] = {}
    rows = []
    for row in measured:
        found = measurement(row)
        if found.quantity != "peak_memory_bytes" or found.value is None or not row.core:
            continue
        try:
            job = express(row).job
        except WattreeError:
            continue
        device = job.cluster.node.device
        key = repr(replace(job, source=""))
        if key not in done:
            setting = setting_of(job, constants)
            execute = predicted(setting, setting.job.strategy)
            assert execute.ledger is not None
            done[key] = (
                execute.peak.tensors,
                {
                    name: reserved_for(
                        execute.trace,
                        execute.ledger,
                        execute.peak.rank_class,
                        name,
                        device.memory_bytes,
                    ).reserved_bytes
                    for name in MODELS
                },
            )
        tensors, reserved = done[key]
        rows.append(
            Row(
                source=row.source_id,
                kind=found.memory_kind or "allocated",
                architecture=device.architecture,
                measured=found.value,
                tensors=tensors,
                reserved=reserved,
            )
        )
    return rows


def remaining(rows: Sequence[Row], model: str | None) -> tuple[list[float], dict[str, float]]:
    """Return the fitted constants of one way, and the mean absolute error by source and of all."""
    measured = np.array([row.measured for row in rows])
    allocated = np.array([row.kind == "allocated" for row in rows])
    tensors = np.array([row.tensors for row in rows])
    one = np.ones(len(rows))
    contexts = [
        np.array([row.kind == "process" and row.architecture == name for row in rows], dtype=float)
        for name in CONTEXTS
    ]
    if model is None:
        base = tensors
        columns = [one * allocated, tensors * ~allocated, one * ~allocated, *contexts]
    else:
        reserved = np.array([row.reserved[model] for row in rows])
        base = np.where(allocated, tensors, reserved)
        columns = [one, *contexts]
    constants, errors = _fitted(base / measured, np.stack(columns, axis=1) / measured[:, None])
    sources = np.array([row.source for row in rows])
    by_source = {name: float(errors[sources == name].mean()) for name in np.unique(sources)}
    return constants.tolist(), by_source | {"all": float(errors.mean())}


def _fitted(base: Floats, design: Floats) -> tuple[Floats, Floats]:
    """Return constants of at least 0 with the least absolute errors from 1, and those errors."""
    scale = np.maximum(np.abs(design).max(axis=0), 1e-300)
    solution = np.zeros(design.shape[1])
    for _ in range(_ROUNDS):  # iteratively reweighted least squares
        weight = np.maximum(np.abs(1.0 - base - design @ solution), 5e-3) ** -0.5
        weighted = design / scale * weight[:, None]
        solution = lsq_linear(weighted, (1.0 - base) * weight, bounds=(0.0, np.inf)).x / scale
    return solution, np.abs(1.0 - base - design @ solution)


def _show(rows: Sequence[Row], found: dict[str, tuple[list[float], dict[str, float]]]) -> None:
    head = ("computed with", "constants", *next(iter(found.values()))[1])
    table = plain_table(f"Mean absolute error of peak memory, {len(rows)} rows", head)
    for name, (constants, errors) in found.items():
        table.add_row(name, str(len(constants)), *(f"{error:.2%}" for error in errors.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
