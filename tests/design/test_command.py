"""`wattree design` writes what it is asked for, and refuses before it works."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.design.studies import small_study
from wattree.cli.main import run
from wattree.cli.pictures import DESIGN_PLOTS


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """Return a study of eight points on disk; JSON is YAML."""
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(small_study(search={"simulate": 0})), encoding="utf-8")
    return path


def test_page_and_tables_are_written(
    study_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One run, all of them, and the answers on the terminal."""
    paths = {kind: tmp_path / f"out.{kind}" for kind in ("html", "csv", "parquet")}
    options = [
        *("--report", str(paths["html"])),
        *("--csv", str(paths["csv"])),
        *("--parquet", str(paths["parquet"])),
    ]
    code = run(["design", str(study_file), "--on", "here", *options])
    assert code == 0
    assert paths["html"].read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert len(paths["csv"].read_text(encoding="utf-8").splitlines()) == 9
    assert pq.read_table(paths["parquet"]).num_rows == 8
    assert "Is it worth it" in capsys.readouterr().out


def test_pictures_are_written_alone(study_file: Path, tmp_path: Path) -> None:
    """For a paper or a page of one's own, without the report."""
    paths = {name: tmp_path / f"{name}.svg" for name in DESIGN_PLOTS}
    options = [word for name, path in paths.items() for word in ("--plot", f"{name}={path}")]
    study = json.loads(study_file.read_text(encoding="utf-8"))
    study |= {"objectives": ["time", "energy"], "search": {"simulate": 1}}
    study_file.write_text(json.dumps(study), encoding="utf-8")

    code = run(["design", str(study_file), "--on", "here", *options])

    assert code == 0
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    assert "time to target [" in texts["front"]
    assert "time of a step [" in texts["step"]
    assert "energy of a step with PUE [" in texts["energy"]


def test_a_missing_package_is_said_before_the_study_runs(
    study_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after an hour."""
    monkeypatch.setattr("wattree.errors.find_spec", lambda _: None)
    code = run(["design", str(study_file), "--parquet", str(study_file.with_suffix(".parquet"))])
    assert code == 2
    assert "pip install '.[report]'" in capsys.readouterr().err
    assert not study_file.with_suffix(".results.sqlite").exists()


@pytest.mark.parametrize("option", ["--csv", "--report", "--parquet", "--json"])
def test_nothing_is_written_over_the_points(
    option: str, study_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are kept besides the study; finished work is never lost."""
    kept = tmp_path / "small.results.sqlite"
    kept.write_text("points", encoding="utf-8")
    assert run(["design", str(study_file), option, str(kept)]) == 2
    assert kept.read_text(encoding="utf-8") == "points"
    assert "small.results.sqlite: is the file that is read" in capsys.readouterr().err


def test_a_page_is_not_written_over_the_study(
    study_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of completion must not cost the file."""
    code = run(["design", str(study_file), "--report", str(study_file)])
    assert code == 2
    assert "name another file to write" in capsys.readouterr().err
