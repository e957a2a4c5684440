"""Published recipes: each becomes a job, and its predicted speed is near the published one."""

from __future__ import annotations

import contextlib
import statistics
from pathlib import Path
from typing import Final

import pytest

import wattree
from benchmarks.recipe_files import FRAMEWORKS, imported, recipes
from benchmarks.recipes import main
from wattree.errors import JobError, StrategyError
from wattree.job import job_from_mapping

#: Of so many recipes one is tried, of which so many are predicted; their accepted median error
#: of tokens per second. `python -m benchmarks.recipes` tries all.
TRIED: Final = {
    "torchtitan": (1, 32, 0.08),
    "megatron-bridge": (7, 40, 0.13),
    "llm-foundry": (20, 11, 0.06),
}


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
def test_published_recipes_run_as_fast_as_was_published(name: str, tmp_path: Path) -> None:
    """Recipes are imported to be compared with; what is lost on the way would show here."""
    every, least, accepted = TRIED[name]
    errors = []
    for row in recipes(name)[::every]:
        try:
            found = imported(name, row, tmp_path)
        except JobError:
            continue
        assert found.not_understood == ()
        job = job_from_mapping(found.job, str(row))
        with contextlib.suppress(StrategyError):  # what only `simulate` knows
            seconds = wattree.estimate(job).step_time_s
            tokens = job.data.global_batch * job.data.sequence_length
            errors.append(abs(tokens / seconds / job.cluster.devices / row["tokens"] - 1))

    assert len(errors) >= least
    assert statistics.median(errors) < accepted


def test_a_recipe_of_no_known_model_is_refused(tmp_path: Path) -> None:
    """Its architecture is not in the catalog, and the message says so."""
    row = next(each for each in recipes("megatron-bridge") if "deepseek_v4" in each["recipe"])

    with pytest.raises(JobError, match="of which no model is known"):
        imported("megatron-bridge", row, tmp_path)


@pytest.mark.parametrize(
    ("name", "key", "value", "note"),
    [
        ("torchtitan", "seq", 262144, "262144 positions instead of the model's 131072"),
        ("megatron-bridge", "release", "26.08", "attention has the rates of 16 bits"),
    ],
)
def test_what_a_job_cannot_say_is_assumed(
    name: str, key: str, value: object, note: str, tmp_path: Path
) -> None:
    """A recipe's options that no key of a job stands for are told, not dropped."""
    row = next(each for each in recipes(name) if each[key] == value)

    assert any(note in said for said in imported(name, row, tmp_path).assumed)


def test_the_table_counts_what_is_inside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is refused counts as not imported, and has no error."""
    few = recipes("torchtitan")[:4]
    few[3]["flavor"] = "9B"  # of no known size
    monkeypatch.setattr("benchmarks.recipes.recipes", lambda _: few)

    assert main(["--full", "--only", "torchtitan"]) == 0

    shown = capsys.readouterr().out
    assert "3 of 4" in shown
    assert "3 of 3" in shown
