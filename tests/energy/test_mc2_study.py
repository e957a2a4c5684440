"""The study runs from end to end: a few of its runs, with page and picture somewhere else."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from wattree.job import job_from_mapping
from wattree.trace.run_file import read_run


def test_the_study_writes_its_table_and_picture(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One model at one batch on few nodes; what people wrote around the table stays."""
    source = root / "examples" / "mc2_study"
    spec = importlib.util.spec_from_file_location("study", source / "study.py")
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    small = {"resnet-50": {"samples_per_processor": [16]}}
    nodes = {"mt": [2, 4, 16, 32], "ft": [2, 4, 16, 32]}
    platforms = {
        name: {**each, "nodes": nodes[name]} for name, each in study.STUDY["platforms"].items()
    }
    monkeypatch.setattr(study, "STUDY", {**study.STUDY, "models": small, "platforms": platforms})
    monkeypatch.setattr(study, "HERE", tmp_path)
    shutil.copy(source / "README.md", tmp_path)
    before = (tmp_path / "README.md").read_text(encoding="utf-8")

    study.main([str(tmp_path / "runs"), "--page"])

    after = (tmp_path / "README.md").read_text(encoding="utf-8")
    outside = [text.partition(study.BEGIN)[0] for text in (before, after)]
    below = [text.partition(study.END)[2] for text in (before, after)]
    rows = after.partition(study.BEGIN)[2].partition(study.END)[0].strip().splitlines()
    assert outside[0] == outside[1]
    assert below[0] == below[1]
    assert rows[0].count("|") == len(study.STUDY["platforms"]) * len(study.STUDY["regimes"]) + 2
    assert rows[2].startswith("| MC² stages, measured times | ")
    assert (tmp_path / "errors.png").stat().st_size > 10_000
    assert "== ft, synchronous (simulated) ==" in capsys.readouterr().out


def test_the_measured_runs_are_those_of_the_script(root: Path) -> None:
    """Each job can be read, each run is there, and an idle one."""
    folder = root / "examples" / "mc2_study"
    spec = importlib.util.spec_from_file_location("measured", folder / "measured.py")
    assert spec is not None
    assert spec.loader is not None
    measured = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(measured)
    names = {"idle"}
    for name in measured.NETWORKS:
        for processes in measured.PROCESSES:
            job = job_from_mapping(measured.job_of(name, processes))
            assert job.data.global_batch == measured.NETWORKS[name][1] * processes
            names.add(f"{name}-{processes}")

    runs = {path.stem: read_run(path) for path in (folder / "measured").glob("*.json")}

    assert set(runs) == names
    assert {run.node for run in runs.values()} == {measured.NODE}
    assert all(run.power for run in runs.values())
    with pytest.raises(SystemExit, match="holds runs"):
        measured.main(folder / "measured")


def test_the_study_leaves_its_page_alone_unless_asked(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` prints help and writes nothing."""
    source = root / "examples" / "mc2_study" / "study.py"
    spec = importlib.util.spec_from_file_location("study", source)
    assert spec is not None
    assert spec.loader is not None
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)

    with pytest.raises(SystemExit):
        study.main(["--help"])

    assert "--page" in capsys.readouterr().out
    assert not Path("--help").exists()
