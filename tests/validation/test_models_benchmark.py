"""The comparison with known counts: what it finds, and folders that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from benchmarks import model_counts
from benchmarks.models import main, report_of, summary

GOOD = """
import torch
from torch import nn

def build(small=False):
    return nn.Linear(2 if small else 4, 3)

def example_inputs(batch, small=False):
    return (torch.randn(batch, 2 if small else 4),)
"""
BAD = {
    "raises": "raise ValueError('on purpose')",
    "leaves": "import sys; sys.exit(3)",
    "empty": "",
    "never_ends": "import time\nwhile True: time.sleep(0.1)",
    "dies": "import os; os._exit(9)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a good module, bad ones, and answers for one that is not there."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "good.py").write_text(GOOD)
    for name, code in BAD.items():
        (tmp_path / "modules" / f"{name}.py").write_text(code)
    # y = W x + b: 2 * 12 FLOP a sample, and as much again for the gradient of W.
    full = {"batch": 2, "params": 15, "flops_forward": 48, "flops_forward_backward": 96}
    answers = {"file": "modules/good.py", "full": full, "small": {"batch": 2, "params": 8}}
    expected = {"modules": {"good": answers, "absent": {"file": "modules/absent.py"}}}
    (tmp_path / "expected.json").write_text(json.dumps(expected))
    return tmp_path


def test_every_model_has_a_row_and_bad_ones_a_reason(folder: Path) -> None:
    """One bad file must not take the others with it."""
    # One second for what never ends, however fast the machine is, and enough for all others.
    short = report_of(folder, only=["never_ends"], time_limit_s=1)
    (folder / "modules" / "never_ends.py").unlink()
    report = report_of(folder)

    rows = {row["id"]: row for row in (*report["models"], *short["models"])}
    assert rows.keys() == {"good", "absent", *BAD}
    for measure in ("parameters", "flops_forward", "flops_forward_backward"):
        assert rows["good"][measure]["found"] == rows["good"][measure]["expected"]
    assert rows["good"]["small"]["parameters"]["found"] == 9  # and 8 was expected
    assert report["summary"]["small"]["parameters"]["missed"] == ["good"]
    assert rows["raises"]["refused"] == "ValueError: on purpose"
    assert rows["leaves"]["refused"] == "SystemExit: 3"
    assert rows["empty"]["refused"].endswith("it defines no function 'build'")
    assert rows["never_ends"]["refused"] == "given up, as 1 s are not enough"
    assert rows["dies"]["refused"] == "its process ended with 9"
    assert rows["absent"]["refused"].endswith("no such file")


def test_nothing_but_json_goes_to_the_screen(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs read it; a missed figure is no failure."""
    pytest.importorskip("transformers")

    assert main([str(folder), "--json", "-", "--only", "good"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in report["models"]] == ["good"]


def test_a_figure_that_is_missed_is_named() -> None:
    """The table must be able to say so."""
    row: dict[str, Any] = {
        **{name: {"found": None, "expected": None} for name in model_counts.MEASURES},
        "id": "m",
        "refused": None,
        "capture_s": 1.0,
    }
    row["flops_forward"] = {"found": 102.0, "expected": 100}
    row["parameters"] = {"found": 5, "expected": 5}

    found = summary([row])

    assert found["flops_forward"]["missed"] == ["m"]
    assert found["flops_forward"]["worst"] == pytest.approx(0.02)
    assert (found["parameters"]["exact"], found["parameters"]["missed"]) == (1, [])


@pytest.mark.parametrize("name", ["microsoft/resnet-50", "google/electra-base-discriminator"])
def test_a_configuration_counts_as_other_software_counts_it(root: Path, name: str) -> None:
    """One that is captured, and one that is read, by both roads."""
    pytest.importorskip("transformers")
    models = root / "validation" / "models"
    answers = json.loads((models / "expected.json").read_text())["configs"][name]

    row = model_counts.config_row(name, models / answers["config"], answers)

    for measure in ("parameters", "flops_forward", "flops_forward_backward"):
        assert row[measure]["found"] == answers[model_counts.KEYS[measure]]
        if row["road"] == "family":
            assert row["captured"][measure] == row[measure]["found"]
