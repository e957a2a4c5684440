"""Objectives of which nothing costs anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattree.cli.main import run


@pytest.mark.filterwarnings("error")
@pytest.mark.usefixtures("small_space")
@pytest.mark.parametrize(
    ("objective", "energy"),
    [("cost", {"price": "0 USD/kWh"}), ("carbon", {"carbon": "0 gCO2e/kWh"})],
)
def test_what_costs_nothing_is_ranked_all_the_same(
    objective: str, energy: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Own power may have no price, and a grid no emissions; all strategies are level then."""
    path = tmp_path / "job.yaml"
    job = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 4},
        "cluster": {"node": "2x-rtx-a6000"},
        "energy": energy,
    }
    path.write_text(json.dumps(job))

    codes, best = [], []
    ways = ([], ["--full"], ["--pareto", f"time,{objective}"])
    for words in (*(["--objective", objective, *more] for more in ways), ["--objective", "time"]):
        codes.append(run(["plan", str(path), *words, "--json", "-"]))
        best.append(json.loads(capsys.readouterr().out)["best"]["label"])

    assert (codes, best) == ([0] * 4, [best[3]] * 4)
