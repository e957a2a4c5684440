"""Files of measured rows: one table schema, read into typed rows.

A file by other hands may hold anything in its cells: a row that cannot be read keeps its place and
says why, and the others are read. What a row means as a job is the business of `express`; what it
measured, of `measurement`.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from wattree.errors import JobError, nearest
from wattree.files import read_text, refusal
from wattree.kinds import check_kind

#: Larger files are refused before they are read; the largest published set is below 1 MiB. [B]
ROWS_FILE_LIMIT_BYTES = 64 * 2**20
#: A message lists this many faults, then counts the rest.
_SHOWN_PROBLEMS = 20
#: More are no table of runs, and a nearest known name would be sought for each of them.
_MOST_COLUMNS = 1000
_WHOLE = re.compile(r"[0-9]{1,15}")  # `\d` would take the digits of every script
_NUMBER = re.compile(r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")
#: Above any quantity of a row, in any unit that a column has.
_LARGEST = 1e30
#: Cells that say "not stated", in the words of spreadsheets and of pandas.
_EMPTY = frozenset({"", "None", "NaN", "nan", "NA", "N/A", "n/a", "-", "null"})
_AGAIN = "every cell is as in an earlier row of this id; counted once"
#: What separates cells, by the programs that write tables; the first of those that fit best.
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One published measurement. None: the source does not say.

    Columns whose names carry no explanation here mean what their names say; sizes are per step
    or per device as the file's README defines them.

    Attributes:
        row_id: Unique inside a file.
        source_id, source_ref, source_date: Short key of the source; exact place in it; date.
        evidence, task: How the value was read; what was run.
        n_params_b: Parameters. [1e9]
        gated_mlp, tied_emb: Three matrices per MLP; one matrix for embedding and logits.
        n_dense_layers: Leading layers without experts.
        accelerator, accel_mem_gb: Device as printed; its memory as printed. [GB]
        n_accel, accel_per_node: Devices in the job; per node.
        micro_batch: Sequences per forward pass of one model replica.
        vp: Virtual stages per pipeline rank.
        ep: Ranks over which experts are spread (they span data and tensor parallel ranks).
        fsdp_shard: Ranks over which parameters are sharded.
        primary_metric: Column that holds the published quantity.
        step_time_s, implied_step_time_s: As printed; derived from a printed throughput. [s]
        mem_gib_per_gpu, mem_kind: Memory value; its unit and what it is.
        avg_power_w, power_scope, energy_kwh: Mean power; of what (`measurement.power_scope`);
            energy. [W], [kWh]
        core: The row says enough to count in accuracy figures.
        check, notes: Consistency result; anomalies of the source.
        unreadable: Why the row's line cannot be read; None if it can. No column.
        unread: Columns that no row is read from → their cells, by which runs may differ. No column.
    """

    row_id: str
    source_id: str
    source_ref: str
    accelerator: str
    n_accel: int | None
    primary_metric: str
    core: bool
    software: str | None = None
    source_date: str | None = None
    evidence: str | None = None
    task: str | None = None
    model_family: str | None = None
    model_name: str | None = None
    arch_type: str | None = None
    n_params_b: float | None = None
    n_layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_dim: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    gated_mlp: bool | None = None
    tied_emb: bool | None = None
    n_experts: int | None = None
    top_k: int | None = None
    expert_ffn: int | None = None
    n_shared_experts: int | None = None
    n_dense_layers: int | None = None
    image_size: str | None = None
    accel_mem_gb: float | None = None
    accel_per_node: int | None = None
    inter_node_link: str | None = None
    precision: str | None = None
    global_batch: int | None = None
    micro_batch: int | None = None
    grad_accum: int | None = None
    tp: int | None = None
    pp: int | None = None
    vp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    fsdp_shard: int | None = None
    sharding: str | None = None
    seq_parallel: bool | None = None
    recompute: str | None = None
    overlap_fusion: str | None = None
    optimizer: str | None = None
    software_version: str | None = None
    power_limit_w: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    time_to_train_min: float | None = None
    mem_gib_per_gpu: float | None = None
    mem_kind: str | None = None
    avg_power_w: float | None = None
    power_scope: str | None = None
    energy_kwh: float | None = None
    implied_step_time_s: float | None = None
    check: str | None = None
    notes: str | None = None
    unreadable: str | None = None
    unread: tuple[tuple[str, str], ...] = ()


def choice_of(row: MeasuredRow) -> Hashable:
    """Return what two rows must share for their order to be a choice of strategy."""
    return (
        *(row.source_id, row.model_name, row.accelerator, row.n_accel),
        *(row.seq_len, row.precision, row.software_version),
    )


def read_rows(path: Path) -> tuple[MeasuredRow, ...]:
    """Return the rows of a CSV file: commas, semicolons or tabs, UTF-8, UTF-16 or Windows-1252.

    Columns may stand in any order and, except for the seven without which a row means nothing,
    may be left out; columns that no row is read from are passed over. An empty cell is None. A
    line with a cell that is no number where one is expected (`inf` and signs are none) is a row
    that is `unreadable`, with every fault that it has.

    Raises:
        JobError: The file is missing, too large, no text or no CSV table; a column is missing,
            misspelled or named twice. Every fault is listed.
    """
    check_kind(path, "a table of measured runs (CSV)")
    text = read_text(path, limit_bytes=ROWS_FILE_LIMIT_BYTES, of_spreadsheets=True)
    return _rows(text, str(path))


def bundled_rows() -> tuple[MeasuredRow, ...]:
    """Return the cited rows that ship with the package."""
    return read_rows(Path(__file__).parent / "data" / "rows.csv")


def with_unique_ids(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Return rows of one or more files, with numbers behind ids that occur more than once.

    A row that stands in them again with all its cells is `unreadable`, so that it counts once.
    """
    taken, repeats, found = set[str](), Counter[str](), []
    known: set[MeasuredRow] = set()
    for each in rows:
        row = replace(each, unreadable=_AGAIN) if each in known else each
        known.add(each)
        name = row.row_id
        while name in taken:
            repeats[row.row_id] += 1
            name = f"{row.row_id} ({repeats[row.row_id] + 1})"
        taken.add(name)
        found.append(row if name == row.row_id else replace(row, row_id=name))
    return found


def _rows(text: str, source: str) -> tuple[MeasuredRow, ...]:
    head = text.partition("\n")[0]
    separator = max(_SEPARATORS, key=lambda each: len(_READERS.keys() & _cells(head, each)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[MeasuredRow] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, source)
        rows = [_row(header, cells, reader.line_num) for cells in reader if any(cells)]
    except csv.Error as error:
        raise JobError(source, [f"line {reader.line_num}: no CSV table ({error})"]) from None
    if not rows:
        raise JobError(source, ["found a header and no rows, expected at least one row"])
    return tuple(rows)


def _cells(line: str, separator: str) -> set[str]:
    return {cell.strip().strip('"') for cell in line.split(separator)}


def _check_header(header: Sequence[str], source: str) -> None:
    if not header:
        raise JobError(source, ["the file is empty; expected a header line with the column names"])
    if len(header) > _MOST_COLUMNS:
        raise JobError(
            source, [f"line 1: found {len(header):,} columns, expected at most {_MOST_COLUMNS}"]
        )
    problems = [f"column '{name}' is missing; add it" for name in _REQUIRED if name not in header]
    for name in header:
        guess = None if name in _READERS else nearest(name, _READERS.keys() - set(header))
        if guess:
            problems.append(f"column '{name}' is unknown; did you mean '{guess}'?")
    problems += [
        f"column '{name}' stands {header.count(name)} times; keep one"
        for name in dict.fromkeys(header)
        if name in _READERS and header.count(name) > 1
    ]
    if problems:
        raise refusal(source, problems, most=_SHOWN_PROBLEMS)


def _row(header: Sequence[str], cells: Sequence[str], line: int) -> MeasuredRow:
    faults: list[str] = []
    values: dict[str, Any] = dict.fromkeys(_REQUIRED)
    if len(cells) != len(header):
        faults.append(f"found {len(cells)} cells, expected {len(header)}")
    for name, cell in zip(header, cells, strict=False):
        text = cell.strip()
        if name not in _READERS or text in _EMPTY:
            continue
        try:
            values[name] = _READERS[name](text)
        except ValueError as error:
            faults.append(f"column '{name}': found '{text[:40]}', expected {error}")
            values[name] = None
    faults += [
        f"column '{name}': is empty, expected a value"
        # The number of devices is not stated everywhere; the column has to be there all the same.
        for name in dict.fromkeys(header)
        if name in _REQUIRED and name != "n_accel" and values[name] is None and not faults
    ]
    stand_in = {"row_id": f"line {line}", "core": False, "n_accel": None}
    for name in _REQUIRED:
        if values[name] is None:
            values[name] = stand_in.get(name, "")
    unreadable = f"line {line}: {'; '.join(faults)}" if faults else None
    unread = sorted(
        (name, cell.strip())
        for name, cell in zip(header, cells, strict=False)
        if name not in _READERS
    )
    return MeasuredRow(**values, unreadable=unreadable, unread=tuple(unread))


def _whole(text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise ValueError("a whole number from 0, of at most 15 digits")
    return int(text)


def _number(text: str) -> float:
    # Compared after reading: "1e99" and a number written out in a hundred digits are the same.
    if not _NUMBER.fullmatch(text) or not float(text) <= _LARGEST:
        raise ValueError(f"a number from 0 to {_LARGEST:g}")
    return float(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("0 or 1")
    return text == "1"


_BY_TYPE: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": _number,
    "bool": _switch,
}
#: Column → how its cells are read, in the order of the schema.
_READERS: Mapping[str, Callable[[str], Any]] = {
    field.name: _BY_TYPE[str(field.type).split(" ")[0]]
    for field in fields(MeasuredRow)
    if field.name not in {"unreadable", "unread"}
}
_REQUIRED = tuple(field.name for field in fields(MeasuredRow) if field.default is MISSING)
