"""A trace of a real training on a GPU: one step of Qwen 3 0.6B on an H200 (`about` in the file)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from wattree.cli.main import run
from wattree.job.written import yaml_text
from wattree.kineto.ranks import read_ranks
from wattree.learn.measured_steps import MeasuredRank, measured_ranks
from wattree.learn.observe import measured_step
from wattree.learn.own_steps import own_steps

from .traces import event, write

TRACE = Path(__file__).with_name("h200_step.json.gz")
#: Without the profiler. [s]
STEP = "200 ms"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return the job that was traced."""
    path = tmp_path / "job.yaml"
    found = {
        "model": "qwen3-0.6b",
        "data": {"sequence_length": 1024, "global_batch": 8},
        "precision": "bf16",
        "optimizer": "adamw",
        "software": "hf-trainer",
        "cluster": {"node": "dgx-h200"},
        "place": {"devices": 0},
        "strategy": {"micro_batch": 8, "recompute": "none"},
    }
    path.write_text(yaml_text(found), encoding="utf-8")
    return path


def measured() -> MeasuredRank:
    """Return the classes of the traced step."""
    (rank,) = measured_ranks(read_ranks([TRACE]))
    return rank


def test_classes_are_those_of_the_operators_that_launched_the_kernels() -> None:
    """Counted apart from this reader, by the operators around each launch in the whole trace.

    Matmuls 38.91 ms, attention 12.19 (1.04 of it casts and memsets), AdamW 4.74, clipping 1.99
    (0.01 of it other kernels), concatenation 3.05, copies of layout and memory 6.98; the device is
    busy for 186.56 ms. What was in flight before the step, 26.9 ms, is of none.
    """
    rank = measured()

    found = {name: 1e3 * seconds for name, seconds in rank.classes_s.items() if seconds > 0}
    assert found == {
        "products": pytest.approx(38.91, abs=0.02),
        "attention": pytest.approx(12.19 - 1.04, abs=0.02),
        "elementwise": pytest.approx(119.75, abs=0.1),
        "optimizer": pytest.approx(4.74 + 1.98, abs=0.02),
        "copies": pytest.approx(3.05 + 6.98, abs=0.02),
        "host": pytest.approx(273.67 - 186.56, abs=0.1),
    }
    assert sum(found.values()) == pytest.approx(1e3 * rank.step_s)


def test_operators_say_what_the_time_of_a_class_is() -> None:
    """Eager modules launch thousands of kernels, most of them to multiply."""
    kernels = measured().kernels

    assert kernels["elementwise"].count == 4606
    assert next(iter(kernels["elementwise"].operators)) == "aten::mul"
    assert list(kernels["products"].operators) == ["aten::mm", "aten::bmm"]
    assert kernels["attention"].count == 28 * 6


def test_the_command_explains_the_step(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Classes add up to the step without the profiler, whose time is taken from the host."""
    words = ["explain", str(job), "--trace", str(TRACE), "--step-time", STEP]

    assert run([*words, "--json", "-"]) == 0

    out = capsys.readouterr()
    found = json.loads(out.out)
    classes = {each["name"]: each["measured_s"] for each in found["classes"]}
    assert found["measured_s"] == pytest.approx(0.2)
    assert found["traced_s"] == pytest.approx(0.27367, abs=1e-5)
    assert sum(classes.values()) == pytest.approx(0.2)
    assert classes["host"] == pytest.approx(0.2 - 0.18656, abs=1e-4)
    assert found["tensor_bytes"][1] == 42262356992
    assert "what the profiler added is left out" in out.err


def test_without_a_step_time_the_command_says_what_the_profiler_does(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host is slowed by recording, which no trace tells from its own work."""
    assert run(["explain", str(job), "--trace", str(TRACE)]) == 0

    assert "the profiler slows the host" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("time", "said"),
    [("100 ms", "expected 149 ms to 411 ms"), ("500 ms", "a step of 500 ms")],
)
def test_a_step_time_of_another_run_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str], time: str, said: str
) -> None:
    """Shorter than the work in the trace, or longer than a profiler makes it."""
    for command in (["explain"], ["calibrate", "--out", str(job.with_name("mine.yaml"))]):
        words = [command[0], str(job), "--trace", str(TRACE), "--step-time", time, *command[1:]]
        assert run(words) == 2
        assert said in capsys.readouterr().err


def test_a_trace_and_a_step_time_are_one_run(job: Path) -> None:
    """The host is observed where a time without the profiler says how long the device waits."""
    both = own_steps(job, step_times=[STEP], traces=[TRACE])

    step_s, classes = measured_step(both)
    _, traced = measured_step([each for each in both if each.classes_s is not None])

    assert step_s == pytest.approx(0.2)
    assert classes is not None
    assert traced is not None
    assert sum(classes.values()) == pytest.approx(0.2)  # COMPUTING is not among them again
    assert classes["host"] == pytest.approx(0.2 - 0.18656, abs=1e-4)
    assert "host" not in traced


def test_calibration_moves_the_step_to_the_measured_one(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the prediction is, it does not move away."""
    out = tmp_path / "mine.yaml"
    words = ["calibrate", str(job), "--trace", str(TRACE), "--step-time", STEP]

    assert run([*words, "--out", str(out), "--json", "-"]) == 0

    (step,) = json.loads(capsys.readouterr().out)["steps"]
    before, after = (abs(math.log(step[name] / 0.2)) for name in ("before_s", "after_s"))
    assert step["measured_s"] == pytest.approx(0.2)
    assert after < max(before, 0.1)


@pytest.mark.parametrize(
    ("node", "category", "said"),
    [
        ("dgx-h200", "cpu_op", "add ProfilerActivity.CUDA"),
        ("2x-epyc-7742", "kernel", "holds kernels of a device"),
    ],
)
def test_a_trace_of_other_devices_is_refused(
    job: Path, capsys: pytest.CaptureFixture[str], node: str, category: str, said: str
) -> None:
    """Without activity CUDA a trace of GPUs has times of the host alone, which are no kernels'."""
    text = job.read_text(encoding="utf-8").replace("dgx-h200", node).replace("bf16", "fp32")
    job.write_text(text, encoding="utf-8")
    events = [event("ProfilerStep#3", "user_annotation", 0.0, 1e6)]
    events.append(event("gemm", category, 0.0, 9e5))
    trace = write(job.with_name("t.json"), events, world=1)

    for command in (["explain"], ["calibrate", "--out", str(job.with_name("mine.yaml"))]):
        assert run([command[0], str(job), "--trace", str(trace), *command[1:]]) == 2
        assert said in capsys.readouterr().err
