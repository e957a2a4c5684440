"""examples/phantom_study: a corner of the sweep, and what is kept of the measured part."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "phantom_study"
MODULES = ("pictures", "simulated", "tables", "trained")


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the study's program; its modules are gone again afterward."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    spec = importlib.util.spec_from_file_location("phantom_study", FOLDER / "study.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return module


def test_a_corner_prints_every_table_and_writes_nothing(
    study: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wide layers over a node halve the energy of a step, narrow ones over many do not."""
    before = {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir() if path.is_file()}

    study.main(["--quick"])

    printed = capsys.readouterr().out
    after = {path.name: path.stat().st_mtime_ns for path in FOLDER.iterdir() if path.is_file()}
    assert after == before
    assert printed.count("### Simulated") == 4
    assert printed.count("### Measured") == 2
    assert "batch 64, width 65536: holds at p 8, 64" in printed
    assert "batch 64, width 16384: holds at p 8; not" in printed
    assert "Same loss (measured on stacks of digits)" in printed


def test_every_run_of_the_study_is_kept(study: ModuleType) -> None:
    """Settings that were changed without measuring again are noticed."""
    trained = study.STUDY["trained"]
    kept = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))["runs"]
    wanted = list(study.tables.grouped(kept))
    runs = list(sys.modules["trained"].runs_of(trained))

    asked = {json.dumps(run, sort_keys=True) for run in runs}
    assert {json.dumps({key: row[key] for key in runs[0]}, sort_keys=True) for row in kept} == asked
    assert len(kept) == len(runs)
    assert len(wanted) * len(trained["seeds"]) == sum(not run["timed"] for run in runs)
    for row in kept:
        assert len(row["losses"]) == row["steps"] // 10
        assert row["losses"][-1] < row["losses"][0]
        assert len(row["steps_to"]) == len(trained["targets"][row["source"]])


def test_bytes_that_were_measured_are_those_of_the_formula(study: ModuleType) -> None:
    """Ghosts of all layers forward, their gradients backward; and a gather of classes."""
    trained = study.STUDY["trained"]
    kept = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))["runs"]
    ghosts = [run for run in kept if run["preset"] == "phantom" and run["source"] != "digits"]
    assert ghosts
    for run in ghosts:
        elements = 2 * (run["ranks"] - 1) * run["ghosts"] * trained["batch"] * run["depth"]
        assert run["sent_bytes"] == pytest.approx(4 * elements)


def test_steps_to_a_loss(study: ModuleType) -> None:
    """The mean of the last ten steps counts, as for `training.target_loss`."""
    steps_to = sys.modules["trained"].steps_to

    assert steps_to([1.0] * 9 + [0.0], 0.9) == 10
    assert steps_to([1.0] * 10 + [0.0] * 10, 0.5) == 15
    assert steps_to([1.0] * 30, 0.5) is None
    assert study.STUDY["claim"] == 0.5


def test_the_page_has_what_the_program_prints_of_what_was_measured(study: ModuleType) -> None:
    """`python examples/phantom_study/study.py --stored` remakes it."""
    page = (FOLDER / "tables.md").read_text(encoding="utf-8")
    kept = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))["runs"]

    assert study.tables.steps_table(kept, study.STUDY["trained"]["targets"]) in page
    assert study.tables.timed_table(kept) in page


def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    """With the exit code of the command, and files as they were."""
    pytest.importorskip("torch")
    folder = tmp_path / "phantom_study"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    # A process started in the background may ignore the signal.
    program = (
        "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "sys.argv = ['study.py']; runpy.run_path('study.py', run_name='__main__')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stderr is not None
        assert "training" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        _, notes = child.communicate(timeout=600)
    assert child.returncode == 130
    assert "interrupted" in notes
    assert 'study.py", line' not in notes  # a rank that still imports may end in one of its own
    for name in ("measured.json", "tables.md"):
        assert (folder / name).read_bytes() == (FOLDER / name).read_bytes()


def test_forward_passes_that_were_measured_are_those_of_the_study(study: ModuleType) -> None:
    """All contestants with every seed; ghosts are sent once for each layer."""
    asked = study.STUDY["inference"]["measured"]
    kept = json.loads((FOLDER / "forward.json").read_text(encoding="utf-8"))["runs"]
    trained = study.STUDY["trained"]

    assert len(kept) == 6 * len(trained["seeds"])
    assert all(run[key] == asked[key] for run in kept for key in ("source", "steps", "depth"))
    ghosts = [run for run in kept if run["preset"] == "phantom"]
    assert ghosts
    for run in ghosts:
        elements = (run["ranks"] - 1) * run["ghosts"] * trained["batch"] * run["depth"]
        assert run["sent_bytes"] == 4 * elements
