"""What Python shows of results: lines, pieces of pages, tables."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wattree
from tests.design.studies import small_study
from tests.samples import sample_plan, sample_result
from tests.schedule.test_queue import queue, waiting
from tests.validation.test_table import ENTRIES
from wattree.design import run_study, study_from_mapping
from wattree.errors import MissingExtraError
from wattree.report import notebook
from wattree.report.html.report_view import Card
from wattree.schedule import schedule
from wattree.schedule.queue_file import queue_from_mapping
from wattree.shown import Shown
from wattree.validation import Validation

JOB = "examples/llama-3.1-70b-3d.yaml"
TREE = "examples/llama-3.1-8b-tree.yaml"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """One result of each kind that users get."""
    job = wattree.load_job(JOB)
    folder = tmp_path_factory.mktemp("study")
    study = study_from_mapping(small_study(), str(folder / "study.yaml"))
    queued = queue(waiting(nodes=1), waiting("b", nodes=2))
    return {
        "Prediction": wattree.simulate(job),
        "Result": sample_result(),
        "StepEstimate": wattree.estimate(job),
        "Plan": sample_plan(),
        "RunComparison": wattree.compare([Path(JOB), Path(TREE)]),
        "PowerSweep": wattree.power_sweep(job, limits_w=(700, 500)),
        "Validation": Validation(scored=ENTRIES),
        "Results": run_study(study, on="here"),
        "QueueSchedule": schedule(queue_from_mapping(queued, folder=folder)),
    }


def test_every_result_is_plain_in_json(results: dict[str, Shown]) -> None:
    """What is read back from a file compares with what was written: no tuples, no keys but text."""
    differing = [
        name
        for name, result in results.items()
        if json.loads(json.dumps(found := result.as_json())) != found
    ]

    assert differing == []


def test_every_result_is_one_line_a_piece_of_a_page_and_a_table(results: dict[str, Shown]) -> None:
    """Each kind that there is; a table has its rows, and numbers where JSON has numbers."""
    assert set(notebook._LINES) == set(results)
    for name, result in results.items():
        line, html, frame = repr(result), result._repr_html_(), result.to_frame()
        assert re.fullmatch(rf"<{name}: .{{10,300}}>", line), line
        assert html.lstrip().startswith(("<div", "<pre")), name
        assert len(frame) == len(result.records()) > 0, name
        assert all(isinstance(column, str) for column in frame.columns), name
    assert re.search(r"best by \w+: #\d+>", repr(results["Results"]))  # as tables number it
    step = results["Prediction"]
    assert step.to_frame()["step_time_s"][0] == step.result.step_time_s
    ends = step.to_frame()[["interval.step_time_s.low", "interval.step_time_s.high"]]
    assert tuple(ends.loc[0]) == step.result.interval["step_time_s"]


def test_two_pieces_on_one_page_share_no_id(results: dict[str, Shown]) -> None:
    """Pictures would be cut by the shapes of others."""
    pages = [results[name]._repr_html_() for name in ("Prediction", "RunComparison")]
    ids = [set(re.findall(r' id="([^"]+)"', page)) for page in pages]
    for page, own in zip(pages, ids, strict=True):
        assert own
        assert set(re.findall(r"url\(#([^)]+)\)", page)) <= own
    assert not ids[0] & ids[1]


def test_names_of_a_job_are_text_on_the_page() -> None:
    """A model may be called as it likes."""
    html = notebook._screen("<script>alert(1)</script>", "", cards=[Card(name="<b>", value="&")])
    assert "<script>" not in html
    named = sample_result(model="a\x1b[2Jb\u202ec")
    assert "\\x1b" in repr(named)
    assert not set("\x1b\u202e") & set(repr(named) + named._repr_html_())
    assert "<b>" not in html


def test_without_the_report_extra_a_result_shows_its_text(
    results: dict[str, Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a terminal would."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for result in results.values():
        assert result._repr_html_().startswith("<pre")


def test_a_table_is_of_the_library_that_is_there(
    results: dict[str, Shown], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pandas first, then polars; without either the message says what to install."""

    def framed(columns: dict[str, list[Any]]) -> tuple[str, dict[str, list[Any]]]:
        return "polars", columns

    plan = results["Plan"]
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=framed))
    name, columns = plan.to_frame("polars")
    assert name == "polars"
    assert {len(column) for column in columns.values()} == {len(plan.records())}
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert plan.to_frame() == (name, columns)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingExtraError, match="install it with: pip install pandas"):
        plan.to_frame()
