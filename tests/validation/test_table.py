"""Tables: the words and figures that a reader sees."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from wattree.validation import Scored, Validation, summary_markdown, worst_markdown
from wattree.validation.outcome import hold_out_key
from wattree.validation.rows import MeasuredRow
from wattree.validation.score import summaries
from wattree.validation.table import skipped_table, summary_table, worst_table

ROW = MeasuredRow(
    row_id="A",
    source_id="one",
    source_ref="notebook",
    accelerator="H100-SXM",
    n_accel=8,
    software="torchtitan",
    primary_metric="step_time_s",
    core=True,
    model_name="m",
)
ENTRIES = (
    Scored(row=ROW, quantity="step_time_s", measured=1.0, predicted=1.1),
    Scored(row=replace(ROW, row_id="B"), quantity="step_time_s", measured=2.0, predicted=1.9),
    Scored(
        row=replace(ROW, row_id="C", source_id="two"),
        quantity="step_time_s",
        measured=1.0,
        predicted=None,
        skipped="not stated: hidden",
    ),
)
HEAD = "| source | rows | mean | median | p90 | bias | pairs right | skipped |"
SUMMARY = summaries(ENTRIES)["step_time_s"]


def shown(table: Table) -> str:
    """Return a table as a terminal without colors shows it."""
    stream = io.StringIO()
    Console(file=stream, width=120, no_color=True).print(table)
    return stream.getvalue()


def test_a_summary_as_markdown() -> None:
    """It goes into documents as it is."""
    assert summary_markdown(SUMMARY, left_out={"one": 0.075, "all": 0.075}).splitlines() == [
        f"{HEAD} mean, source left out |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| one | 2 | 7.5 % | 7.5 % | 9.5 % | +2.5 % | 100.0 % of 1 | 0 | 7.5 % |",
        "| two | 0 | - | - | - | - | - | 1 | - |",
        "| all | 2 | 7.5 % | 7.5 % | 9.5 % | +2.5 % | 100.0 % of 1 | 1 | 7.5 % |",
    ]


def test_a_summary_on_a_terminal_has_the_same_figures() -> None:
    """Two renderings of one set of cells."""
    text = shown(summary_table(SUMMARY, quantity="step_time_s"))

    assert "Step time, error against measured rows" in text
    assert "1 of 1" in text
    assert "left out" not in text


def test_the_worst_rows_name_model_devices_and_values_with_units() -> None:
    """Enough to find the row and to see what was missed."""
    memory = Scored(
        row=replace(ROW, row_id="D", n_accel=None, model_name=None),
        quantity="peak_memory_bytes",
        measured=2.0**31,
        predicted=2.0**30,
    )

    assert worst_markdown([ENTRIES[0], memory]).splitlines()[2:] == [
        "| A | one | m | 8 x H100-SXM | 1 s | 1.1 s | +10.0 % |",
        "| D | one | - | ? x H100-SXM | 2.00 GiB | 1.00 GiB | -50.0 % |",
    ]
    assert "+10.0 %" in shown(worst_table(ENTRIES[:1]))


def test_skipped_rows_are_grouped_by_reason() -> None:
    """Six hundred rows of one source may share a reason; each is counted, some are named."""
    skipped = [
        Scored(
            row=replace(ROW, row_id=f"R{i}", source_id="three"),
            quantity="step_time_s",
            measured=1.0,
            predicted=None,
            skipped=f"row R{i}: not stated: hidden",
        )
        for i in range(6)
    ]
    text = shown(skipped_table([ENTRIES[2], *skipped]))

    assert text.index("three") < text.index("two")
    assert "R0, R1, R2, R3 and 2 more" in text
    assert "row R0" not in text


def test_a_validation_prints_and_exports_every_row() -> None:
    """A skipped row is reported, not dropped; nothing in the JSON is NaN."""
    validation = Validation(
        scored=ENTRIES,
        left_out={"step_time_s": {"one": 0.09}},
        assumed={"A": ("optimizer not stated: adamw",)},
    )
    exported = validation.as_json()
    stream = io.StringIO()
    Console(file=stream, width=160, no_color=True).print(validation.table())

    assert [row["row_id"] for row in exported["rows"]] == ["A", "B", "C"]
    assert exported["rows"][0]["assumed"] == ["optimizer not stated: adamw"]
    assert exported["mean_abs_error_source_left_out"] == {"step_time_s": {"one": 0.09, "all": 0.09}}
    json.dumps(exported, allow_nan=False)
    assert "not stated: hidden" in stream.getvalue()
    assert "left out" in stream.getvalue()


def test_the_worst_that_was_held_out_stands_beside_the_mean() -> None:
    """A mean over all devices hides the one that a reader may have."""
    record = {"one": 0.04, "two": 0.2, "all, mean": 0.06, "all, median": 0.03}
    validation = Validation(
        scored=(), left_out={hold_out_key("device", is_network=False): record, "other": {"x": 1.0}}
    )

    (line,) = validation.hold_outs

    assert (line.rows, line.held_out, line.worst) == ("language models", "device", "two")
    assert (line.mean, line.median, line.error) == (0.06, 0.03, 0.2)
