"""The energy table: what its sections hand over, and targets on the measured rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import energy, energy_gemm, energy_zeus
from benchmarks.frame import Measure, Options
from wattree.cost import load_calibration


def test_a_measure_knows_whether_its_target_is_met() -> None:
    """Means are of absolute errors, the bias of signed ones."""
    found = Measure.of("power", np.array([-0.1, 0.02, 0.03]), 0.06)

    assert found.figure == pytest.approx(0.05)
    assert found.bias == pytest.approx(0.02)
    assert found.met is True
    assert Measure.of("power", np.array([0.2]), 0.1).met is False
    assert Measure.of("power", np.array([0.2]), None).met is None


def test_training_under_limits_is_predicted_from_its_anchors(shared: Path) -> None:
    """The figures that the project promises on these rows."""
    section = energy_zeus.section(Options(shared=shared, calibration=load_calibration()))

    assert section is not None
    assert {m.name: m.met for m in section.measures if m.target is not None} == {
        "average power": True,
        "step time": True,
    }
    assert all(measure.figure < 0.08 for measure in section.measures + section.details)


def test_the_power_of_products_is_within_what_the_project_promises(shared: Path) -> None:
    """On shapes that made no constant."""
    pytest.importorskip("pyarrow")
    options = Options(shared=shared, calibration=load_calibration(), refits=False)
    section = energy_gemm.section(options)

    assert section is not None
    assert [m.name for m in section.measures if m.met is False] == []
    assert sum(m.target is not None for m in section.measures) == 4


def test_the_table_is_written_as_json_and_absent_rows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends well where nothing is there to read."""
    path = tmp_path / "energy.json"

    assert energy.main([str(tmp_path), "--only", "limits", "--json", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == {}
    assert "limits: its tables or its library are not there" in capsys.readouterr().err
