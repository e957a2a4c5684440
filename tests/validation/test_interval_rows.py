"""Intervals hold on rows that ship: bounds far enough apart that a refit may move them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from wattree.validation import validate

ROWS = Path("src/wattree/validation/data/rows.csv")
#: One row in so many is predicted; all of them take a minute.
_ONE_IN = 6


@pytest.mark.slow
def test_most_measured_values_lie_in_their_intervals(tmp_path: Path) -> None:
    """80 % of rows left out, rows of the fit more; and intervals tell something."""
    head, *rows = ROWS.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = tmp_path / "rows.csv"
    chosen.write_text(head + "".join(rows[::_ONE_IN]), encoding="utf-8")

    found = validate([chosen]).as_json()

    covered = found["interval_coverage"]["step_time_s"]["all"]
    assert covered["rows"] >= 10
    assert covered["inside"] >= 0.6
    times = [row for row in found["rows"] if row["interval"] is not None]
    for row in times:
        low, high = row["interval"]
        assert low < row["predicted"] < high
        assert row["evidence"]
    widths = [row["interval"][1] / row["interval"][0] for row in times]
    assert statistics.median(widths) < 2.0
