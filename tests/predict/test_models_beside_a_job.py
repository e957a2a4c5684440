"""Models that a job names without a path: of the catalog first, then next to its file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from wattree.capture import load_model
from wattree.job import job_from_mapping, load_job
from wattree.lowering.model import model_of

CONFIG = Path("examples/small-llama/config.json").resolve()
REST = {
    "data": {"sequence_length": 256, "global_batch": 16},
    "cluster": {"node": "dgx-a100"},
    "strategy": "ddp",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model called `mine`, and one called as a model of the catalog."""
    for name in ("mine", "gpt2"):
        (tmp_path / name).mkdir()
        shutil.copy(CONFIG, tmp_path / name / "config.json")
    return tmp_path


@pytest.mark.parametrize("model", ["mine", "./mine", "mine/config.json", "./gpt2"])
def test_a_name_is_found_beside_the_job_from_wherever_it_is_run(folder: Path, model: str) -> None:
    """Downloaded models lie in a folder; Python and the commands find them alike."""
    path = folder / "job.yaml"
    path.write_text(json.dumps({"model": model, **REST}))
    mapping = {"model": model, **REST}

    expected = load_model(CONFIG).parameters
    assert model_of(load_job(path)).parameters == expected
    assert model_of(job_from_mapping(mapping, folder=folder)).parameters == expected


def test_a_folder_does_not_replace_a_known_model(folder: Path) -> None:
    """Not in silence."""
    path = folder / "job.yaml"
    path.write_text(json.dumps({"model": "gpt2", **REST}))

    assert model_of(load_job(path)).parameters == load_model("gpt2").parameters
