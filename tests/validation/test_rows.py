"""Files of rows: what is read, and what is refused with which words."""

from __future__ import annotations

import csv
import io
from dataclasses import fields
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from wattree.errors import JobError
from wattree.validation import validate
from wattree.validation.rows import (
    ROWS_FILE_LIMIT_BYTES,
    MeasuredRow,
    bundled_rows,
    read_rows,
    with_unique_ids,
)

HEADER = "row_id,source_id,source_ref,accelerator,n_accel,software,primary_metric,core"
LINE = "A1,mine,notebook,H100-SXM,8,torchtitan,step_time_s,1"


def written(folder: Path, *lines: str) -> Path:
    """Return a file of these lines."""
    path = folder / "rows.csv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """Return the message with which a file is refused, its own path left out."""
    with pytest.raises(JobError) as caught:
        read_rows(path)
    return str(caught.value).replace(str(path), "FILE")


def test_a_file_with_the_needed_columns_is_read(tmp_path: Path) -> None:
    """A user's own file says what its user knows; the rest is None."""
    (row,) = read_rows(written(tmp_path, f"{HEADER},step_time_s,tp", f"{LINE},1.5e1,"))

    assert (row.row_id, row.n_accel, row.step_time_s, row.tp, row.core) == (
        "A1",
        8,
        15.0,
        None,
        True,
    )


def test_the_bundled_rows_hold_every_column_that_is_read_and_a_citation() -> None:
    """They are an example of the whole schema, and each is a cited fact."""
    with (Path(__file__).parents[2] / "validation" / "rows.csv").open(encoding="utf-8") as stream:
        header = next(csv.reader(stream))

    columns = {field.name for field in fields(MeasuredRow)} - {"unreadable", "unread"}
    assert columns <= set(header)
    assert all(row.source_ref.startswith(("github:", "arXiv:")) for row in bundled_rows())


def test_the_bundled_rows_span_devices_formats_and_kinds_of_model() -> None:
    """A subset of one kind would flatter the errors shown to users."""
    rows = bundled_rows()

    assert {row.accelerator for row in rows} >= {
        "A100-SXM",
        "H100-SXM",
        "H100-SXM-96GB-500W",
        "B200",
        "GB200",
        "V100-SXM2",
    }
    assert {row.arch_type for row in rows} >= {"decoder", "moe"}
    assert {row.primary_metric for row in rows} >= {"step_time_s", "mem_gib_per_gpu"}
    assert any(not row.core for row in rows)


@pytest.mark.parametrize("cell", ["inf", "-1", "+1", "1_000", "0x10", "1e999", "1,5", "one", "٣"])
def test_a_cell_that_is_no_plain_number_is_named(tmp_path: Path, cell: str) -> None:
    """Python's float() takes most of these; a slip in a file must not become a measurement."""
    (row,) = read_rows(written(tmp_path, f"{HEADER},step_time_s", f'{LINE},"{cell}"'))

    assert row.unreadable == (
        f"line 2: column 'step_time_s': found '{cell}', expected a number from 0 to 1e+30"
    )


@pytest.mark.parametrize("cell", ["", "None", "nan", "N/A", "-"])
def test_a_cell_without_a_value_is_empty(tmp_path: Path, cell: str) -> None:
    """Spreadsheets and pandas have words for it."""
    (row,) = read_rows(written(tmp_path, f"{HEADER},step_time_s", f"{LINE},{cell}"))

    assert (row.step_time_s, row.unreadable) == (None, None)


def test_every_fault_of_a_row_is_listed_and_the_others_are_read(tmp_path: Path) -> None:
    """One slip of a file by other hands must not cost the rest of it."""
    path = written(
        tmp_path, f"{HEADER},tp,tied_emb", f"{LINE},2.5,yes", LINE, f"{LINE.replace('A1', '')},1,1"
    )

    assert [row.unreadable for row in read_rows(path)] == [
        "line 2: column 'tp': found '2.5', expected a whole number from 0, of at most 15 digits; "
        "column 'tied_emb': found 'yes', expected 0 or 1",
        "line 3: found 8 cells, expected 10",
        "line 4: column 'row_id': is empty, expected a value",
    ]


def test_an_unreadable_row_is_skipped_with_its_reason(tmp_path: Path) -> None:
    """It is in the results, as all rows are."""
    path = written(tmp_path, f"{HEADER},step_time_s", f"{LINE},fast", f"{LINE},1")

    first, second = validate([path]).scored

    assert (first.row.row_id, first.skipped) == (
        "A1",
        "row A1: line 2: column 'step_time_s': found 'fast', expected a number from 0 to 1e+30",
    )
    assert (second.row.row_id, second.skipped) == (
        "A1 (2)",
        "row A1 (2): not stated: hidden, ffn_hidden, seq_len, gated_mlp",
    )


@pytest.mark.parametrize(
    ("encoding", "separator"),
    [("utf-8-sig", ","), ("utf-16", "\t"), ("cp1252", ";"), ("utf-8", ";")],
)
def test_files_of_spreadsheets_are_read(tmp_path: Path, encoding: str, separator: str) -> None:
    """They export in the encoding and with the separator of their user's country."""
    path = tmp_path / "rows.csv"
    text = f"{HEADER},notes\n{LINE},Größe\n".replace(",", separator)
    path.write_bytes(text.encode(encoding))

    (row,) = read_rows(path)

    assert (row.accelerator, row.notes, row.unreadable) == ("H100-SXM", "Größe", None)


def test_unknown_and_missing_columns_are_named(tmp_path: Path) -> None:
    """A misspelled column would otherwise be a silent hole in every row."""
    path = written(tmp_path, HEADER.replace("n_accel", "n_acel").replace("core", "zzzz"), LINE)

    assert refusal(path).splitlines() == [
        "FILE: 3 problems:",
        "  column 'n_accel' is missing; add it",
        "  column 'core' is missing; add it",
        "  column 'n_acel' is unknown; did you mean 'n_accel'?",
    ]


def test_columns_of_other_hands_are_passed_over(tmp_path: Path) -> None:
    """A link or a remark is no reason to refuse a table of runs."""
    (row,) = read_rows(written(tmp_path, f"{HEADER},wandb,wandb", f"{LINE},a,b"))

    assert (row.row_id, row.unreadable) == ("A1", None)


def test_rows_of_one_id_are_told_apart(tmp_path: Path) -> None:
    """Files that number their rows from 1 share ids; results are reported by them."""
    lines = LINE, LINE, LINE.replace("A1", "A1 (2)"), LINE.replace("H100", "A100")
    rows = read_rows(written(tmp_path, HEADER, *lines))

    assert [row.row_id for row in with_unique_ids(rows)] == ["A1", "A1 (2)", "A1 (2) (2)", "A1 (3)"]


def test_a_row_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    """A file may hold a line twice, or be given twice."""
    rows = with_unique_ids(read_rows(written(tmp_path, HEADER, LINE, LINE)))

    assert [row.unreadable is None for row in rows] == [True, False]
    assert "counted once" in str(rows[1].unreadable)


def test_runs_that_another_column_tells_apart_both_count(tmp_path: Path) -> None:
    """Its cells are not read, but that they differ is known."""
    lines = f"{LINE},1", f"{LINE},2", f"{LINE},2"
    rows = with_unique_ids(read_rows(written(tmp_path, f"{HEADER},trial", *lines)))

    assert [row.unreadable is None for row in rows] == [True, True, False]


def test_columns_without_end_are_refused_at_once(tmp_path: Path) -> None:
    """Looking for the nearest known name of each took minutes."""
    path = tmp_path / "rows.csv"
    path.write_text(",".join(f"c{number}" for number in range(100_000)) + "\n")

    assert refusal(path) == "FILE: line 1: found 100,000 columns, expected at most 1000"


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Which of the two counts would be a guess."""
    assert refusal(written(tmp_path, f"{HEADER},tp,tp", f"{LINE},1,2")) == (
        "FILE: column 'tp' stands 2 times; keep one"
    )


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """The commonest mistake."""
    assert refusal(tmp_path / "none.csv") == ("FILE: there is no such file; check the path")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """Shell completion stops at folders."""
    assert refusal(tmp_path) == "FILE: found a folder, expected a file"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "FILE: the file is empty; expected a header line with the column names"),
        (b"\xff\xfe", "FILE: the file is empty; expected a header line with the column names"),
        (b"a,b\n\x00", "FILE: found binary content (a zero byte), expected text"),
        (HEADER.encode(), "FILE: found a header and no rows, expected at least one row"),
        (f'{HEADER}\n"A1'.encode(), "FILE: line 2: no CSV table (unexpected end of data)"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Empty, binary and truncated files end in one message each."""
    path = tmp_path / "rows.csv"
    path.write_bytes(content)

    assert refusal(path).startswith(message)


def test_an_oversized_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A sparse file costs no disk; reading it would cost memory."""
    path = tmp_path / "rows.csv"
    with path.open("wb") as stream:
        stream.truncate(ROWS_FILE_LIMIT_BYTES + 1)

    assert refusal(path) == (
        f"FILE: found {ROWS_FILE_LIMIT_BYTES + 1} B, expected at most {ROWS_FILE_LIMIT_BYTES} B"
    )


@given(content=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_file_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """No input ends in a traceback."""
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_bytes(content)

    with pytest.raises(JobError):
        read_rows(path)


@given(cells=st.lists(st.text(max_size=12), min_size=9, max_size=9))
def test_any_cells_under_a_right_header_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str]
) -> None:
    """The header is right, the cells are anything: still a row or a message."""
    text = io.StringIO()
    csv.writer(text).writerows([f"{HEADER},step_time_s".split(","), cells])
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_bytes(text.getvalue().encode("utf-8", "replace"))

    try:
        (row,) = read_rows(path)
    except JobError:
        return
    assert row.unreadable is not None or row.row_id == cells[0].strip()


def test_all_published_files_are_read(shared: Path) -> None:
    """The schema is theirs."""
    counts = {path.stem: len(read_rows(path)) for path in (shared / "measured").glob("*.csv")}

    assert counts == {
        "energy": 946,
        "memory": 136,
        "throughput_llm": 1139,
        "throughput_vision_dlrm": 418,
    }
