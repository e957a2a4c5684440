"""Files of measured rows: one table schema, read strictly into typed rows.

What a row means as a job is the business of `express`; what it measured, of `measurement`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from wattree.errors import JobError, nearest
from wattree.files import read_text, refusal

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
#: Cells that say "not stated". The published files hold the word `None` in a few of them.
_EMPTY = ("", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One published measurement. None: the source does not say.

    Columns whose names carry no explanation here mean what their names say; sizes are per step
    or per device as the file's README defines them.

    Attributes:
        row_id: Unique inside a file.
        source_id, source_ref, source_date: Short key of the source; exact place in it; date.
        evidence, task: How the value was read; what was run.
        n_params_b, n_active_params_b: Parameters. [1e9]
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
        avg_power_w, power_scope, energy_kwh: Mean power; of what; energy. [W], [kWh]
        core: The row says enough to count in accuracy figures.
        check, notes: Consistency result; anomalies of the source.
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
    n_active_params_b: float | None = None
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
    arch_notes: str | None = None
    image_size: str | None = None
    accel_mem_gb: float | None = None
    accel_per_node: int | None = None
    intra_node_link: str | None = None
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
    pp_schedule: str | None = None
    recompute: str | None = None
    overlap_fusion: str | None = None
    optimizer: str | None = None
    software_version: str | None = None
    power_limit_w: float | None = None
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    model_tflops_per_gpu: float | None = None
    tflops_convention: str | None = None
    mfu_pct: float | None = None
    hfu_pct: float | None = None
    time_to_train_min: float | None = None
    mem_gib_per_gpu: float | None = None
    mem_kind: str | None = None
    avg_power_w: float | None = None
    power_scope: str | None = None
    energy_kwh: float | None = None
    n_runs: int | None = None
    implied_step_time_s: float | None = None
    implied_tokens_per_s_per_gpu: float | None = None
    implied_tflops_per_gpu: float | None = None
    implied_mfu_bf16peak_pct: float | None = None
    check: str | None = None
    notes: str | None = None


def read_rows(path: Path) -> tuple[MeasuredRow, ...]:
    """Return the rows of a CSV file.

    Columns may stand in any order and, except for the eight without which a row means nothing,
    may be left out. An empty cell is None.

    Raises:
        JobError: The file is missing, too large, no UTF-8 text or no CSV table; a column is
            unknown, missing or named twice; a cell is no number where one is expected (`nan`,
            `inf` and signs are refused); a `row_id` occurs twice. Every fault is listed.
    """
    return _rows(read_text(path, limit_bytes=ROWS_FILE_LIMIT_BYTES), str(path))


def bundled_rows() -> tuple[MeasuredRow, ...]:
    """Return the cited rows that ship with the package."""
    return read_rows(Path(__file__).parent / "data" / "rows.csv")


def _rows(text: str, source: str) -> tuple[MeasuredRow, ...]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    problems: list[str] = []
    rows: list[MeasuredRow] = []
    try:
        header = next(reader, None)
        _check_header(header, source)
        assert header is not None
        for cells in reader:
            if cells:
                row = _row(header, cells, f"line {reader.line_num}", problems)
                rows += [row] if row else []
    except csv.Error as error:
        raise JobError(source, [f"line {reader.line_num}: no CSV table ({error})"]) from None
    problems += _repeated(row.row_id for row in rows)
    if not rows and not problems:
        problems.append("found a header and no rows, expected at least one row")
    if problems:
        raise refusal(source, problems, most=_SHOWN_PROBLEMS)
    return tuple(rows)


def _check_header(header: Sequence[str] | None, source: str) -> None:
    if not header:
        raise JobError(source, ["the file is empty; expected a header line with the column names"])
    if len(header) > _MOST_COLUMNS:
        raise JobError(
            source, [f"line 1: found {len(header):,} columns, expected at most {_MOST_COLUMNS}"]
        )
    problems = [f"column '{name}' is missing; add it" for name in _REQUIRED if name not in header]
    for name in header:
        if name not in _READERS:
            guess = nearest(name, _READERS)
            hint = f"; did you mean '{guess}'?" if guess else "; remove it"
            problems.append(f"column '{name}' is unknown{hint}")
    problems += [
        f"column '{name}' stands {header.count(name)} times; keep one"
        for name in dict.fromkeys(header)
        if header.count(name) > 1
    ]
    if problems:
        raise refusal(source, problems, most=_SHOWN_PROBLEMS)


def _row(
    header: Sequence[str], cells: Sequence[str], place: str, problems: list[str]
) -> MeasuredRow | None:
    if len(cells) != len(header):
        problems.append(f"{place}: found {len(cells)} cells, expected {len(header)}")
        return None
    before = len(problems)
    values: dict[str, Any] = {}
    for name, cell in zip(header, cells, strict=True):
        text = cell.strip()
        if text in _EMPTY:
            values[name] = None
            continue
        try:
            values[name] = _READERS[name](text)
        except ValueError as error:
            problems.append(f"{place}, column '{name}': found '{text[:40]}', expected {error}")
    problems += [
        f"{place}, column '{name}': is empty, expected a value"
        for name in _REQUIRED
        # The number of devices is not stated everywhere; the column has to be there all the same.
        if name in values and values[name] is None and name != "n_accel"
    ]
    return MeasuredRow(**values) if len(problems) == before else None


def _repeated(row_ids: Any) -> list[str]:
    seen: dict[str, int] = {}
    for row_id in row_ids:
        seen[row_id] = seen.get(row_id, 0) + 1
    return [
        f"row_id '{row_id}' stands {count} times; expected once"
        for row_id, count in seen.items()
        if count > 1
    ]


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
    field.name: _BY_TYPE[str(field.type).split(" ")[0]] for field in fields(MeasuredRow)
}
_REQUIRED = tuple(field.name for field in fields(MeasuredRow) if field.default is MISSING)
