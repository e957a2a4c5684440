"""Runs under power limits: which row anchors which, and what is predicted from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wattree.validation import validate

HEADER = (
    "row_id,source_id,source_ref,accelerator,n_accel,software,primary_metric,core,model_name,"
    "global_batch,optimizer,power_limit_w,avg_power_w,energy_kwh,samples_per_s"
)


def row(row_id: str, limit: int, power: float, *, optimizer: str = "adam", **more: Any) -> str:
    """Return a line of the file."""
    given = {"source": "zeus-nsdi23-trace", "device": "A40", "model": "net", "kwh": 0.1, "rate": 50}
    given |= {"core": 1, **more}
    return (
        f"{row_id},{given['source']},ref,{given['device']},1,PyTorch,avg_power_w,{given['core']},"
        f"{given['model']},32,{optimizer},{limit},{power},{given['kwh']},{given['rate']}"
    )


def scored(tmp_path: Path, *lines: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the entries of `validate --json` by row and quantity."""
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    found = json.loads(json.dumps(validate([path]).as_json()))["rows"]
    return {(entry["row_id"], entry["quantity"]): entry for entry in found}


def test_the_highest_limit_anchors_the_others_and_counts_in_no_average(tmp_path: Path) -> None:
    """Its own figures are given, so nothing is predicted for it."""
    found = scored(tmp_path, row("E1", 150, 148.0), row("E2", 300, 250.0), row("E3", 200, 190.0))

    anchors = {row_id for (row_id, _), entry in found.items() if entry["anchor"]}
    assert anchors == {"E2"}
    assert found["E2", "average_power_w"]["predicted"] is None
    assert found["E2", "average_power_w"]["skipped"] == "anchors the rows with lower limits"
    assert {quantity for row_id, quantity in found if row_id == "E1"} == {
        "average_power_w",
        "energy_j",
        "step_time_s",
    }


def test_energy_is_power_times_time_and_follows_the_limit(tmp_path: Path) -> None:
    """Energy and step time are predicted with the same stretch."""
    found = scored(tmp_path, row("E1", 150, 148.0), row("E2", 300, 250.0))
    power_w, energy_j, step_s = (
        found["E1", quantity]["predicted"]
        for quantity in ("average_power_w", "energy_j", "step_time_s")
    )
    stretch = step_s / (32 / 50)

    assert power_w <= 150.0
    assert stretch > 1.1
    assert energy_j == pytest.approx(0.1 * 3.6e6 / 250.0 * power_w * stretch)


def test_each_optimiser_has_its_own_anchor_where_several_share_the_highest_limit(
    tmp_path: Path,
) -> None:
    """Both are anchors."""
    found = scored(
        tmp_path,
        row("E1", 300, 250.0, optimizer="adam"),
        row("E2", 300, 120.0, optimizer="sgd"),
        row("E3", 150, 148.0, optimizer="adam"),
        row("E4", 150, 110.0, optimizer="sgd"),
    )
    predicted = {name: found[name, "average_power_w"]["predicted"] for name in ("E3", "E4")}

    assert found["E1", "average_power_w"]["anchor"]
    assert found["E2", "average_power_w"]["anchor"]
    assert predicted["E3"] > predicted["E4"] + 15.0


def test_other_rows_of_the_file_are_scored_beside_them(tmp_path: Path) -> None:
    """In the order of the file, each once per quantity; what says too little is named."""
    found = scored(
        tmp_path,
        row("E1", 300, 250.0, device="TPU"),
        row("E2", 200, 190.0, device="TPU"),
        row("E3", 300, 250.0, source="unheard-of"),
    )

    assert found["E2", "average_power_w"]["skipped"].startswith("its device has no constants")
    assert found["E3", "average_power_w"]["skipped"]
    assert [name for name, _ in found] == ["E1", "E1", "E1", "E2", "E2", "E2", "E3"]
