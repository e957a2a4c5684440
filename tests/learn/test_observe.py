"""Classes of a traced step tell constants apart that a step time cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import wattree
from wattree.job.written import yaml_text
from wattree.learn.calibrate import calibrate
from wattree.learn.measured_steps import CLASSES
from wattree.learn.own_steps import OwnStep
from wattree.learn.predicted_step import predicted_step

#: What two ranks of examples/from-your-runs took on one core that others used, too. [s]
STARVED = {
    "products": 5.588e-3,
    "elementwise": 2.103e-3,
    "optimizer": 2.014e-3,
    "copies": 2.854e-3,
    "communication": 8.287e-3,
    "waiting": 1.926e-3,
    "data": 6.485e-3,
    "host": 2.48e-3,
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job in which several classes matter."""
    path = tmp_path / "job.yaml"
    found = {
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 8192, "global_batch": 32},
        "precision": "bf16",
        "cluster": {"node": "dgx-h100", "nodes": 1},
        "software": "accelerate",
        "strategy": {"preset": "fsdp", "dp": 8},
    }
    path.write_text(yaml_text(found), encoding="utf-8")
    return path


def learned(path: Path, out: Path, scales: Mapping[str, float]) -> dict[str, float]:
    """Return class → its predicted time after a trace whose classes take so much longer. [s]"""
    loaded = wattree.load_job(path)
    before = predicted_step(loaded).classes_s
    classes = {name: scales.get(name, 1.0) * before[name] for name in CLASSES}
    step = OwnStep(job=loaded, step_s=sum(classes.values()), source="trace", classes_s=classes)
    calibrate([step], out=out, progress=lambda *_: None)
    after = predicted_step(loaded, out).classes_s
    return {name: after[name] / before[name] for name in CLASSES if before[name] > 0}


def test_what_is_slow_is_learned_and_the_rest_is_not(job: Path, tmp_path: Path) -> None:
    """Attention takes 1.5 times as long, products what was predicted."""
    found = learned(job, tmp_path / "mine.yaml", {"attention": 1.5})

    assert found["attention"] > 1.08
    assert found["products"] == pytest.approx(1.0, abs=0.08)  # all may be slower alike
    assert found["attention"] > found["products"] + 0.05


def test_a_starved_run_is_learned_class_by_class(root: Path, tmp_path: Path) -> None:
    """Far from what is usual, too, where a sum of classes would say again what they say."""
    loaded = wattree.load_job(root / "examples" / "from-your-runs" / "job.yaml")
    classes = {name: STARVED.get(name, 0.0) for name in CLASSES}
    step = OwnStep(job=loaded, step_s=sum(classes.values()), source="trace", classes_s=classes)
    calibrate([step], out=tmp_path / "mine.yaml", progress=lambda *_: None)

    after = predicted_step(loaded, tmp_path / "mine.yaml").classes_s
    for name in ("products", "communication", "host"):
        assert after[name] == pytest.approx(classes[name], rel=0.5), name


@pytest.mark.parametrize(
    ("name", "move", "words"),
    [("copies", "memory", "memory"), ("products", "products", "matmuls")],
)
def test_a_class_far_from_what_is_usual_is_doubted(
    name: str, move: str, words: str, job: Path, tmp_path: Path
) -> None:
    """Its constant fits the run, and may fit nothing else; copies count as work of memory."""
    loaded = wattree.load_job(job)
    classes = dict(predicted_step(loaded).classes_s)
    classes[name] += 9.0 * classes["elementwise"]
    step = OwnStep(job=loaded, step_s=sum(classes.values()), source="trace", classes_s=classes)

    found = calibrate([step], out=tmp_path / "mine.yaml", progress=lambda *_: None)

    doubted = [each for each in found.warnings if "times as long as usual" in each]
    assert doubted[0].startswith(f"{words}: ")
    assert found.moves[0].name == move


def test_classes_that_are_little_of_the_step_leave_it_whole(job: Path, tmp_path: Path) -> None:
    """A step that mostly waits for data says nothing of products by their class."""
    loaded, out = wattree.load_job(job), tmp_path / "mine.yaml"
    before = predicted_step(loaded)
    classes = {name: 0.2 * before.classes_s[name] for name in CLASSES}
    classes["data"] = before.step_s - sum(classes.values())
    step = OwnStep(job=loaded, step_s=1.1 * before.step_s, source="trace", classes_s=classes)

    found = calibrate([step], out=out, progress=lambda *_: None)

    assert before.step_s < found.steps[0].after_s < 1.1 * before.step_s


@pytest.mark.parametrize("runs_name_it", [False, True])
def test_runs_of_a_family_narrow_no_interval_of_any_software(
    job: Path, tmp_path: Path, *, runs_name_it: bool
) -> None:
    """A job that names no software is as sure as runs of such jobs make it, and no surer."""
    text = job.read_text(encoding="utf-8").replace("software: accelerate", "")
    job.write_text(text, encoding="utf-8")
    unnamed = wattree.load_job(job)
    run = replace(unnamed, software="megatron-core") if runs_name_it else unnamed
    step_s = wattree.simulate(run).result.step_time_s
    own = OwnStep(job=run, step_s=1.1 * step_s, source="run")
    calibrate([own], out=tmp_path / "mine.yaml", progress=lambda *_: None)

    before = wattree.simulate(unnamed).result
    after = wattree.simulate(unnamed, calibration=tmp_path / "mine.yaml").result

    wide, own_width = (
        each.interval["step_time_s"][1] / each.step_time_s for each in (before, after)
    )
    assert (own_width < 0.9 * wide) is not runs_name_it
