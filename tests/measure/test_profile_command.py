"""`wattree profile` as a user meets it, and who takes what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.measure import profiles
from tests.samples import sample_plan
from wattree.cli.main import run
from wattree.errors import RunError
from wattree.measure.profile import machine, profile
from wattree.measure.profile.machine import busy_cores, describe_machine
from wattree.measure.profile.write import files_of


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the calibration's path next to measurements that are complete."""
    out = tmp_path / "cal.yaml"
    profiles.journal_of(files_of(out).measurements, rounds=5)
    monkeypatch.setattr(profile, "describe_machine", lambda **_: profiles.machine())
    monkeypatch.setattr(profile, "busy_cores", lambda: 0.0)
    return out


def test_it_prints_fits_and_says_what_to_do_next(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Complete measurements are only fitted: nothing is run."""
    code = run(["profile", "--out", str(measured)])
    told = capsys.readouterr()

    assert (code, told.err) == (0, "")
    assert "matmuls" in told.out
    assert "held out" in told.out
    assert "cluster: {node: ./cal.node.yaml}" in told.out
    assert all(path.is_file() for path in (measured, files_of(measured).node))


def test_json_has_points_constants_and_errors(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Enough to draw the fit."""
    run(["profile", "--out", str(measured), "--json", "-"])
    found = json.loads(capsys.readouterr().out)
    products = next(fit for fit in found["fits"] if fit["family"] == "matmuls")

    assert len(products["rows"]) == products["points"]
    assert found["constants"]["device.made-up-2x1-on-2.dispatch_s"]["evidence"] == "fitted"
    assert found["measurements"] == found["measurements_of_all_rounds"]


def test_plan_takes_a_calibration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    """As simulate does."""
    asked: dict[str, Any] = {}

    def plan(_: object, **given: Any) -> Any:
        asked.update(given)
        return sample_plan()

    monkeypatch.setattr(wattree, "plan", plan, raising=False)
    job = root / "examples" / "llama-3.1-8b-dgx-h100.yaml"
    run(["plan", str(job), "--calibration", str(tmp_path / "cal.yaml")])

    assert asked["calibration"] == tmp_path / "cal.yaml"


def test_a_calibration_of_another_kind_is_refused_with_all_its_faults(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through the command, with exit code 2."""
    path = tmp_path / "cal.yaml"
    path.write_text("base: shipped\nconstants:\n  general.kernl_s: {value: 1}\n  pooled: 3\n")
    job = root / "examples" / "llama-3.1-8b-dgx-h100.yaml"
    code = run(["simulate", str(job), "--calibration", str(path)])
    told = capsys.readouterr().err

    assert code == 2
    assert "did you mean 'kernel_s'?" in told
    assert "constants.pooled.value: found None" in told


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of Wattree needs it here."""
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(RunError, match=r"pip install '\.\[torch\]'"):
        describe_machine(ranks=None, threads=None)


def test_a_machine_s_device_is_named_by_what_a_rank_has_of_it() -> None:
    """Ranks and threads are part of the name; a file name and a key can hold it."""
    pytest.importorskip("torch")
    one, two = (describe_machine(ranks=2, threads=count) for count in (1, 2))

    assert one.device != two.device
    assert one.device.startswith(two.device.partition("-2x2")[0])
    assert machine._slug("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz") == "intel-xeon-e5-2680-v4"
    assert one.share == max(2 / one.cores, 1.0)


def test_busy_cores_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores' worth of work in the time between two looks."""
    clock, busy = iter([0.0, 0.5]), iter([10.0, 11.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(machine.time, "sleep", lambda _: None)
    monkeypatch.setattr(machine, "machine_busy_s", lambda: next(busy))

    assert busy_cores() == 2.0
