"""Results as tables for other programs: CSV and Parquet, a row for each point and workload."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattree.design.answers.sweep import is_number
from wattree.design.outcome import Outcome, WorkloadOutcome
from wattree.design.results import Results
from wattree.design.study import OBJECTIVE_TOTALS, Axis, Workload
from wattree.errors import check_packages
from wattree.files import write_atomic
from wattree.job.offers import NOT_TRIED
from wattree.units import named_unit, si_unit

Cell = str | float | int | bool | None

#: Figures of a workload.
_FIGURES = (
    "devices",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "time_s",
    "energy_j",
    "cost_usd",
    "carbon_gco2e",
    "average_power_w",
    "peak_power_w",
    "memory_bytes",
)
#: Mappings of a workload: field → prefix of the columns that it becomes.
_PARTS = {
    "time_parts_s": "time_part_s.",
    "energy_by_stage_j": "energy_stage_j.",
    "traffic_bytes": "traffic_bytes.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table.

    Attributes:
        name: Of an axis that of the study, else the figure's with its unit at the end.
        header: The name in CSV files, with the unit in brackets where the name does not have it.
        unit: SI unit; None of names, counts and truth values.
        about: What it is, for people.
        values: One for each row; None where there is none.
    """

    name: str
    header: str
    unit: str | None
    about: str
    values: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    outcome: Outcome
    workload: Workload
    found: WorkloadOutcome | None  # None where the cluster itself cannot be


def columns(results: Results) -> tuple[Column, ...]:
    """Return the table: rows by point, then by workload, as the study has them; quantities in SI.

    Every point has a row for every workload, so that rows of one kind can be counted; where the
    cluster cannot be, they hold the values of the axes and the reason.
    """
    rows = list(_rows(results))
    return (
        _column("point", "Key of the point", rows, lambda row: row.outcome.point.key),
        *(_axis_column(axis, rows) for axis in results.study.axes),
        *_point_columns(rows),
        *_workload_columns(rows),
        *_part_columns(rows),
    )


def csv_text(results: Results) -> str:
    """Return the table as CSV (RFC 4180): one line of headers; a cell without value is empty."""
    table = columns(results)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.header for column in table])
    writer.writerows(zip(*(map(_written, column.values) for column in table), strict=True))
    return text.getvalue()


def write_csv(results: Results, path: str | Path) -> None:
    """Write the table as CSV.

    Raises:
        OutputError: The file cannot be written.
    """
    write_atomic(path, csv_text(results))


def check_parquet() -> None:
    """See to it that Parquet can be written, before a study runs for hours.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    check_packages("pyarrow", needed_for="Writing Parquet", extra="report")


def write_parquet(results: Results, path: str | Path) -> None:
    """Write the table as Parquet; units and descriptions are in the metadata of its fields.

    Raises:
        MissingExtraError: pyarrow is not installed.
        OutputError: The file cannot be written.
    """
    check_parquet()
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = columns(results)
    arrays = [pa.array(*_typed(column, pa)) for column in table]
    fields = [
        pa.field(
            column.name, array.type, metadata={"unit": column.unit or "", "about": column.about}
        )
        for column, array in zip(table, arrays, strict=True)
    ]
    study = results.study
    about = {"study": study.name, "title": study.title, "digest": study.digest}
    notes = {"notes": json.dumps(study.notes, ensure_ascii=False)}
    buffer = pa.BufferOutputStream()
    schema = pa.schema(fields, metadata=about | notes)
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue().to_pybytes())


def _rows(results: Results) -> Iterator[_Row]:
    for outcome in results.outcomes:
        found = {entry.workload: entry for entry in outcome.workloads}
        for workload in results.study.workloads:
            yield _Row(outcome, workload, found.get(workload.name))


def _column(name: str, about: str, rows: Sequence[_Row], value: Callable[[_Row], Cell]) -> Column:
    values, unit = tuple(value(row) for row in rows), named_unit(name.partition(".")[0])
    return Column(name=name, header=name, unit=unit, about=about, values=values)


def _axis_column(axis: Axis, rows: Sequence[_Row]) -> Column:
    unit = None if axis.unit is None else si_unit(axis.unit)
    values = tuple(row.outcome.point.values[axis.name] for row in rows)
    header = axis.name if unit is None else f"{axis.name} [{unit}]"
    return Column(name=axis.name, header=header, unit=unit, about=axis.label, values=values)


def _point_columns(rows: Sequence[_Row]) -> list[Column]:
    known = [
        name
        for name in OBJECTIVE_TOTALS.values()
        if any(name in row.outcome.totals for row in rows)
    ]
    return [
        _column(
            "point_feasible",
            "Whether all workloads and constraints are met",
            rows,
            lambda row: row.outcome.feasible,
        ),
        _column("point_reason", "Why not", rows, lambda row: row.outcome.reason),
        *(
            _column(
                f"total_{name}",
                "Of all workloads by weight; of power the most",
                rows,
                lambda row, name=name: row.outcome.totals.get(name),  # type: ignore[misc]
            )
            for name in known
        ),
    ]


def _workload_columns(rows: Sequence[_Row]) -> list[Column]:
    def of(name: str, about: str) -> Column:
        return _column(name, about, rows, lambda row: _figure(row, name))

    return [
        _column("workload", "Name of the workload", rows, lambda row: row.workload.name),
        _column("weight", "Weight of the workload", rows, lambda row: row.workload.weight),
        of("feasible", "Whether any strategy meets the constraints"),
        of("reason", "Why none does"),
        of("strategy", "The strategy in one line"),
        of("strategy_json", "The strategy as a job file has it, as JSON"),
        of("simulated", "Whether simulated, or by the closed form"),
        of("notes", "What a reader must know"),
        of("not_offered", NOT_TRIED.capitalize()),
        *(of(name, "Of the workload") for name in _FIGURES),
    ]


def _part_columns(rows: Sequence[_Row]) -> Iterator[Column]:
    for field, prefix in _PARTS.items():
        names = dict.fromkeys(
            name for row in rows if row.found is not None for name in getattr(row.found, field)
        )
        for name in names:
            yield _column(
                prefix + name,
                f"{field} of a step: {name}",
                rows,
                lambda row, f=field, n=name: row.found and getattr(row.found, f).get(n),  # type: ignore[misc]
            )


def _figure(row: _Row, name: str) -> Cell:
    return None if row.found is None else _plain(getattr(row.found, name))


def _plain(value: Any) -> Cell:
    """Return a cell: mappings as JSON, lines of notes as one text."""
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    if value is None or isinstance(value, (str, float, int)):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _written(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def _typed(column: Column, pa: Any) -> tuple[list[Cell], Any]:
    """Return the values with the one type that holds them all, and that type."""
    present = [value for value in column.values if value is not None]
    if present and all(isinstance(value, bool) for value in present):
        return list(column.values), pa.bool_()
    if column.unit is not None or (present and all(map(is_number, present))):
        whole = column.unit is None and all(isinstance(value, int) for value in present)
        if whole and present:
            return list(column.values), pa.int64()
        return [None if v is None else float(v) for v in column.values], pa.float64()
    return [None if v is None else _written(v) for v in column.values], pa.string()
