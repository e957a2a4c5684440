"""Tables for other programs hold every point and workload, in SI, with their units."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.design.synthetic import NASTY, axis, expansion_results, outcome, study
from wattree.design import Outcome, Results
from wattree.design.export import columns, csv_text, write_csv, write_parquet
from wattree.design.points import point_of
from wattree.errors import OutputError


def test_a_csv_has_a_row_for_each_point_and_workload() -> None:
    """What is infeasible too, so that a share can be counted."""
    results = expansion_results()
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert len(rows) == len(results)
    first = rows[0]
    assert first["expanded_bandwidth [B/s]"] == "100000000000.0"
    assert first["point_feasible"] == "false"
    assert first["reason"] == "lacks 412 GB of device memory"
    assert first["time_s"] == ""
    last = rows[-1]
    assert float(last["step_time_s"]) == results.outcomes[-1].workloads[0].step_time_s
    assert float(last["time_part_s.compute"]) == pytest.approx(0.7 * float(last["step_time_s"]))
    assert float(last["total_capital_usd"]) == 16 * 3.2e5


def test_parquet_holds_the_same_with_units(tmp_path: Path) -> None:
    """Both files come from one table; Parquet keeps types and says units in its metadata."""
    results = expansion_results()
    write_parquet(results, tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    for column in columns(results):
        assert tuple(table[column.name].to_pylist()) == column.values
    assert table.schema.field("expanded_bandwidth").metadata[b"unit"] == b"B/s"
    assert table.schema.metadata[b"study"] == b"synthetic"
    assert str(table.schema.field("nodes").type) == "int64"
    assert str(table.schema.field("simulated").type) == "bool"


def test_names_from_files_survive(tmp_path: Path) -> None:
    """Quotes, commas and line ends belong to the name, not to the table."""
    nasty = f'a, "b"\n{NASTY}'
    axes = (axis("kind", (nasty, "plain")),)
    outcomes = tuple(
        outcome({"kind": kind}, step_s=1, power_w=1, capital_usd=1, workloads=(nasty,))
        for kind in axes[0].values
    )
    results = Results(study=study(axes, (nasty,)), outcomes=outcomes)
    write_csv(results, tmp_path / "r.csv")
    with (tmp_path / "r.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == [nasty, "plain"]
    assert rows[0]["workload"] == nasty


def test_points_whose_cluster_cannot_be_have_rows_of_reasons() -> None:
    """Nothing was evaluated for them, and the table says why."""
    axes = (axis("n", (1, 2)),)
    bad = Outcome(point=point_of({"n": 1}), feasible=False, reason="no such node")
    results = Results(study=study(axes, ("a", "b")), outcomes=(bad,))
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert [(row["workload"], row["point_reason"], row["feasible"]) for row in rows] == [
        ("a", "no such node", ""),
        ("b", "no such node", ""),
    ]


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    """The study has run for an hour; the message must say which file."""
    with pytest.raises(OutputError, match="cannot be written"):
        write_parquet(expansion_results(), tmp_path / "none" / "r.parquet")
