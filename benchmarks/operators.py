"""Convolutions and memory-bound operators against measurements: the shipped formulas and constants.

    python -m benchmarks.operators [DIR] [--fit] [--page PAGE]

DIR holds `conv.csv` and, where pyarrow is installed (extra `fit`), the table
`elementwise_norm_softmax.parquet`; by default `../shared/opdata`. Errors are of the time, positive
where the prediction is too long. `--fit` remakes the constants of convolutions on every other row
and scores them on the rows between, and on each device with what the others gave.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.frame import SHARED, plain_table
from benchmarks.operator_fit import print_fit
from benchmarks.operator_rows import (
    LAUNCH_S,
    Convolutions,
    Streams,
    predicted_s,
    read_convolutions,
    read_streams,
    shipped_rates,
)
from wattree.arrays import Floats
from wattree.cost import load_calibration
from wattree.cost.memory_bound import passes_of
from wattree.files import write_atomic

_STREAM_NAMES = 2  # that a memory-bound row has: operator and device


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write one into its page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "dir", nargs="?", type=Path, default=SHARED / "opdata", help="folder of tables"
    )
    parser.add_argument("--fit", action="store_true", help="remake the constants and score them")
    parser.add_argument("--page", type=Path, help="page to put the table into")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    groups = read_convolutions(options.dir / "conv.csv")
    if options.fit:
        print_fit(groups, console)
        return 0
    rows = _convolution_errors(groups)
    parts = [_table("Convolutions", ("source", "device", "precision", "pass"), rows)]
    streams = read_streams(options.dir / "elementwise_norm_softmax.parquet")
    if streams is None:
        print("pyarrow is not installed: no elementwise, norm and softmax rows", file=sys.stderr)
    else:
        rows |= (more := _stream_errors(streams))
        parts.append(_table("Memory-bound forward, 64 MB and more", ("operator", "device"), more))
    for part in parts:
        console.print(part)
    if options.page:
        _fill(options.page, rows)
    return 0


def _convolution_errors(groups: Sequence[Convolutions]) -> dict[tuple[str, ...], Floats]:
    rates = shipped_rates(load_calibration())
    found: dict[tuple[str, ...], list[Floats]] = {}
    for group in groups:
        key = (group.source, group.device.name, group.precision, group.which.value)
        error = predicted_s(group, rates(group), LAUNCH_S[group.source, group.precision])
        found.setdefault(key, []).append(error / group.measured_s - 1.0)
    return {key: np.concatenate(found[key]) for key in sorted(found)}


def _stream_errors(streams: Sequence[Streams]) -> dict[tuple[str, ...], Floats]:
    calibration = load_calibration()
    found = {}
    for stream in streams:
        passes = passes_of(stream.kind, stream.function)
        assert passes is not None
        moved = (passes.inputs * stream.inputs + passes.outputs) * stream.bytes
        rate = (
            stream.device.memory_bandwidth_bytes_per_s
            * calibration.device(stream.device, "library_bandwidth")
            * passes.share
        )
        found[stream.function, stream.device.name] = moved / rate / stream.measured_s - 1.0
    return dict(sorted(found.items()))


def _figures(errors: Floats) -> tuple[str, ...]:
    """Return mean and median of absolute errors, and the median error, in percent."""
    found = (np.mean(abs(errors)), np.median(abs(errors)), np.median(errors))
    return tuple(f"{figure:.1%}" for figure in found)


def _table(title: str, names: Sequence[str], rows: dict[tuple[str, ...], Floats]) -> Table:
    head = (*names, "rows", "mean |error|", "median |error|", "median error")
    table = plain_table(title, head, left=len(names))
    for key, errors in rows.items():
        table.add_row(*key, str(len(errors)), *_figures(errors))
    return table


def _fill(page: Path, rows: dict[tuple[str, ...], Floats]) -> None:
    """Put the table between the markers of a page."""
    lines = ["| measured | rows | mean abs. error | median abs. error | median error |"]
    lines.append("|---|---:|---:|---:|---:|")
    by_kind: dict[tuple[str, ...], list[Floats]] = {}
    for key, errors in rows.items():  # of what memory binds, all devices together
        by_kind.setdefault(key if len(key) > _STREAM_NAMES else key[:1], []).append(errors)
    for key, parts in by_kind.items():
        errors = np.concatenate(parts)
        cells = " | ".join(_figures(errors))
        lines.append(f"| {', '.join(key).replace('_', ' ')} | {len(errors)} | {cells} |")
    begin, end = "<!-- operators:begin -->", "<!-- operators:end -->"
    head, rest = page.read_text(encoding="utf-8").split(begin)
    _, tail = rest.split(end)
    write_atomic(page, "\n".join([head + begin, "", *lines, "", end + tail]))


if __name__ == "__main__":
    raise SystemExit(main())
