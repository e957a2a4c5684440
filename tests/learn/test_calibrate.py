"""`wattree calibrate`: constants follow measured steps, and contradictions are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wattree
from wattree.cli.main import run
from wattree.cost import load_calibration
from wattree.job.written import yaml_text
from wattree.predict import predicted, run_of, setting_of
from wattree.trace.run import RunOrigin
from wattree.trace.run_file import write_run


def job(path: Path, **changes: Any) -> Path:
    """Write a small job whose software has no measured rows, so that a run tells much."""
    found = {
        "model": "gpt2",
        "data": {"sequence_length": 1024, "global_batch": 64},
        "precision": "bf16",
        "cluster": {"node": "dgx-h100", "nodes": 1},
        "software": "accelerate",
        "strategy": {"preset": "fsdp", "dp": 8, "micro_batch": 8},
        **changes,
    }
    path.write_text(yaml_text(found), encoding="utf-8")
    return path


def step_s(path: Path, calibration: Path | None = None) -> tuple[float, tuple[float, float]]:
    """Return the predicted step time and its interval."""
    result = wattree.simulate(wattree.load_job(path), calibration=calibration).result
    return result.step_time_s, result.interval["step_time_s"]


def calibrated(path: Path, out: Path, factor: float) -> Path:
    """Return constants learned from a step that takes so many times as long as predicted."""
    measured, _ = step_s(path)
    words = ["calibrate", str(path), "--step-time", f"{factor * measured:.6f} s"]
    assert run([*words, "--out", str(out)]) == 0
    return out


def test_a_measured_step_corrects_it_and_its_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job and one of another batch move toward the run, and their intervals narrow."""
    one = job(tmp_path / "one.yaml")
    other = job(tmp_path / "other.yaml", data={"sequence_length": 1024, "global_batch": 256})
    mine = calibrated(one, tmp_path / "mine.yaml", 1.15)
    capsys.readouterr()

    for path in (one, other):
        before, span_before = step_s(path)
        after, span = step_s(path, mine)
        assert 1.05 < after / before < 1.15
        width = math.log(span[1] / span[0])
        assert width < 0.85 * math.log(span_before[1] / span_before[0])


EXPERTS = {
    "model": "qwen3-30b-a3b",
    "software": "megatron-core",
    "strategy": {"preset": "ddp", "sharding": "zero1", "ep": 8},
    "traits": {"moe_dropless": True},
}
NETWORK = {
    "model": "resnet50",
    "data": {"global_batch": 1024},
    "precision": "amp",
    "cluster": {"node": "dgx-a100", "nodes": 1},
    "software": "pytorch",
    "strategy": {"preset": "ddp", "dp": 8},
}

OFFLOAD = {
    "software": "deepspeed",
    "strategy": {"sharding": "zero2", "dp": 8, "micro_batch": 8, "offload": {"optimizer": "host"}},
}
LOADER = {"preset": "imagenet-jpeg", "tensor_bytes": "200 MiB", "pinned": False}
COPIES = {"data": {"sequence_length": 1024, "global_batch": 64, "loader": LOADER}}


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize(
    "changes",
    [
        *({}, {"software": "megatron-core", "strategy": {"preset": "ddp", "dp": 8}}),
        *(EXPERTS, NETWORK, OFFLOAD, COPIES),
    ],
    ids=["unmeasured", "measured", "experts", "network", "updates on hosts", "copies to devices"],
)
def test_the_interval_holds_a_run_that_contradicts_the_prediction(
    changes: dict[str, Any], factor: float, tmp_path: Path
) -> None:
    """Whether the machine differs that much or the run had a fault: it may take that long again."""
    path = job(tmp_path / "one.yaml", **changes)
    before, _ = step_s(path)
    mine = calibrated(path, tmp_path / "mine.yaml", factor)

    after, (low, high) = step_s(path, mine)

    assert low < factor * before < high
    assert 0.0 < math.log(after / before) / math.log(factor) < 1.0


def test_other_software_and_devices_stay(tmp_path: Path) -> None:
    """What belongs to a device and a family moves nothing else."""
    mine = calibrated(job(tmp_path / "one.yaml"), tmp_path / "mine.yaml", 1.15)
    elsewhere = job(
        tmp_path / "a100.yaml",
        cluster={"node": "dgx-a100", "nodes": 1},
        data={"sequence_length": 1024, "global_batch": 1024},
    )

    before, span_before = step_s(elsewhere)
    after, span = step_s(elsewhere, mine)

    # Of the family alone (launches, step overhead), which the same software keeps elsewhere.
    assert after == pytest.approx(before, rel=0.03)
    assert math.log(span[1] / span[0]) == pytest.approx(
        math.log(span_before[1] / span_before[0]), rel=0.05
    )


def test_waiting_for_launches_is_learned_as_such(tmp_path: Path) -> None:
    """Where the host waits for every kernel, a slow run tells of these waits, too."""
    waiting = job(tmp_path / "waiting.yaml", traits={"launch_blocking": True})
    mine = calibrated(waiting, tmp_path / "mine.yaml", 1.15)

    name = "general.blocking_launch_s"
    waits = [load_calibration(path).constants[name].value for path in (mine, None)]
    assert 1.02 < waits[0] / waits[1] < 1.5
    assert 1.05 < step_s(waiting, mine)[0] / step_s(waiting)[0] < 1.16


def test_waiting_for_routing_is_learned_on_its_device(tmp_path: Path) -> None:
    """It is some of the time of a mixture's run; other devices keep what ships."""
    experts = job(tmp_path / "experts.yaml", **EXPERTS)
    mine = load_calibration(calibrated(experts, tmp_path / "mine.yaml", 1.15)).constants

    shipped = load_calibration().constants["general.moe_host_s"]
    assert mine["general.moe_host_s"] == shipped
    assert 1.0 < mine["device.h100-sxm-80gb.moe_host_s"].value / shipped.value < 1.15
    assert {"device.h100-sxm-80gb.moe_host_graphed_s"}.isdisjoint(mine)


def test_a_step_that_waits_for_its_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Constants move, and the prediction does not: no noise of like jobs is the reason."""
    loader = {"preset": "imagenet-jpeg", "workers": 1}
    data = {"sequence_length": 256, "global_batch": 2048, "loader": loader}
    slow = job(tmp_path / "slow.yaml", data=data)
    calibrated(slow, tmp_path / "mine.yaml", 0.75)

    learned = load_calibration(tmp_path / "mine.yaml").constants
    assert "device.h100-sxm-80gb.staging_bytes_per_s" not in learned  # it copies pinned memory
    assert "is time that no constant sets" in " ".join(capsys.readouterr().err.split())


def test_several_runs_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list of runs; two of one job count as their mean."""
    job(tmp_path / "one.yaml")
    job(tmp_path / "two.yaml", data={"sequence_length": 512, "global_batch": 64})
    times = {name: step_s(tmp_path / f"{name}.yaml")[0] for name in ("one", "two")}
    entries = [
        {"job": "one.yaml", "step_time": f"{1.2 * times['one']:.6f} s"},
        {"job": "one.yaml", "step_time": f"{1.1 * times['one']:.6f} s"},
        {"job": "two.yaml", "step_time": f"{1.1 * times['two']:.6f} s"},
    ]
    listed = tmp_path / "runs.yaml"
    listed.write_text(yaml_text({"runs": entries}), encoding="utf-8")
    capsys.readouterr()

    assert run(["calibrate", str(listed), "--out", str(tmp_path / "m.yaml"), "--json", "-"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert len(found["steps"]) == 2
    mean = math.sqrt(1.2 * 1.1) * times["one"]
    assert found["steps"][0]["measured_s"] == pytest.approx(mean, rel=1e-4)
    for step in found["steps"]:
        assert step["before_s"] < step["after_s"] < step["measured_s"] * 1.03
    assert found["warnings"] == []


def test_times_of_one_job_that_contradict_each_other_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their mean may be close to the prediction, and hides both."""
    path = job(tmp_path / "one.yaml")
    one_s = step_s(path)[0]
    times = [f"--step-time={factor * one_s:.6f} s" for factor in (0.7, 1.4)]
    capsys.readouterr()

    assert (
        run(["calibrate", str(path), *times, "--out", str(tmp_path / "m.yaml"), "--json", "-"]) == 0
    )

    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert "its step times differ by a factor of 2 (" in warning


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ("0 s", "0 s"),
        ("-3 s", "-3 s"),
        ("3 kg", "--step-time: unknown unit 'kg'"),
        ("1 us", "at the bf16 peak of 8 devices"),
        ("9 h", "times the predicted"),
    ],
)
def test_impossible_times_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], time: str, said: str
) -> None:
    """Nothing is written."""
    path, out = job(tmp_path / "one.yaml"), tmp_path / "mine.yaml"

    assert run(["calibrate", str(path), f"--step-time={time}", "--out", str(out)]) == 2

    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_run_that_contradicts_its_job_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Devices, batch and model of the run, all at once."""
    path, out = job(tmp_path / "one.yaml"), tmp_path / "mine.yaml"
    loaded = wattree.load_job(path)
    assert not isinstance(loaded.strategy, str)
    prediction = predicted(setting_of(loaded, load_calibration()), loaded.strategy)
    measured = replace(run_of(loaded, prediction, steps=5, name="run"), origin=RunOrigin.MEASURED)
    write_run(measured, tmp_path / "run.json")
    work = replace(measured.work, samples=32.0, flop=1e15)
    write_run(replace(measured, nodes=2, work=work), tmp_path / "other.json")
    words = ["calibrate", str(path), "--out", str(out), "--run"]

    assert run([*words, str(tmp_path / "other.json")]) == 2
    said = capsys.readouterr().err
    assert "nodes: found 16 ranks in all, but the job has 8" in said
    assert "work.samples: found 32, but the job's global_batch is 64" in said
    assert "work.flop: found 1e+15" in said
    assert not out.exists()
    assert run([*words, str(tmp_path / "run.json")]) == 0

    folder = tmp_path / "trained"  # as `wattree train --out` leaves it
    folder.mkdir()
    write_run(measured, folder / "run.json")
    (folder / "result.json").write_text("{}")
    ran = job(folder / "job.yaml", strategy={"preset": "zero1", "dp": 8, "micro_batch": 8})
    assert run([*words, str(folder)]) == 2
    assert "strategy.sharding: the run had zero1, but the job has zero3" in capsys.readouterr().err
    ran.write_text(path.read_text())
    assert run([*words, str(folder)]) == 0

    two = job(tmp_path / "two.yaml", cluster={"node": "dgx-h100", "nodes": 2})
    write_run(replace(measured, ranks_per_node=16), tmp_path / "one.json")
    two.write_text(two.read_text().replace("dp: 8", "dp: 16").replace("micro_batch: 8", ""))
    assert run(["calibrate", str(two), "--out", str(out), "--run", str(tmp_path / "one.json")]) == 2
    assert "nodes: found 1, but the job's ranks are on 2" in capsys.readouterr().err


@pytest.mark.parametrize("slow", ["computing", "communicating"])
def test_stages_of_a_run_say_what_is_slow(slow: str, tmp_path: Path) -> None:
    """The same step, longer by computing or by exchanges, is not one and the same lesson."""
    found = {"model": "resnet50", "data": {"global_batch": 64}, "software": "pytorch"}
    strategy = {"preset": "zero3", "dp": 4, "micro_batch": 16}
    cluster = {"node": "2x-epyc-7742", "nodes": 2}
    path = job(tmp_path / "job.yaml", **found, cluster=cluster, strategy=strategy, precision="fp32")
    loaded = wattree.load_job(path)
    assert not isinstance(loaded.strategy, str)
    prediction = predicted(setting_of(loaded, load_calibration()), loaded.strategy)
    whole = run_of(loaded, prediction, steps=1, name="run")
    more_s = 0.5 * whole.stages["communicating"].exposed_s
    use = whole.stages[slow]
    stages = {**whole.stages, slow: replace(use, exposed_s=use.exposed_s + more_s)}
    measured = replace(
        whole, origin=RunOrigin.MEASURED, stages=stages, wall_s=whole.wall_s + more_s
    )
    write_run(measured, tmp_path / "run.json")
    out = tmp_path / "mine.yaml"
    words = ["calibrate", str(path), "--out", str(out), "--run", str(tmp_path / "run.json")]
    assert run(words) == 0
    after = wattree.simulate(loaded, calibration=out).result.time_s
    before = prediction.result.time_s
    moved = {
        "computing": after.compute / before.compute,
        "communicating": after.exposed_communication / before.exposed_communication,
    }
    assert max(moved, key=lambda name: moved[name]) == slow


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([], "expected a list of 1 to 100 runs"),
        ([{"job": "one.yaml"}], "runs[0]: expected one of step_time, run, trace"),
        ([{"step_time": "1 s"}], "runs[0].job: expected the path of a job file"),
        ([{"job": "one.yaml", "step_tim": "1 s"}], "runs[0].step_tim: is unknown"),
    ],
)
def test_lists_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entries: list[Any], said: str
) -> None:
    """Each fault with its place."""
    listed, out = tmp_path / "runs.yaml", tmp_path / "mine.yaml"
    listed.write_text(yaml_text({"runs": entries}), encoding="utf-8")

    assert run(["calibrate", str(listed), "--out", str(out)]) == 2

    assert said in capsys.readouterr().err
    assert not out.exists()


def test_nothing_measured_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the options."""
    assert run(["calibrate", str(job(tmp_path / "a.yaml")), "--out", str(tmp_path / "m")]) == 2
    assert "--step-time '12.3 s'" in capsys.readouterr().err


def test_runs_upon_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would count twice."""
    one = job(tmp_path / "one.yaml")
    mine = calibrated(one, tmp_path / "mine.yaml", 1.1)
    words = ["calibrate", str(one), "--step-time", "1 s", "--calibration", str(mine)]

    assert run([*words, "--out", str(tmp_path / "again.yaml")]) == 2

    assert "give all runs at once" in capsys.readouterr().err


def test_damaged_observations_are_refused(tmp_path: Path) -> None:
    """Every fault with its key."""
    mine = calibrated(job(tmp_path / "one.yaml"), tmp_path / "mine.yaml", 1.1)
    text = mine.read_text(encoding="utf-8")
    mine.write_text(text.replace('"noise": ', '"noise": -'), encoding="utf-8")

    with pytest.raises(wattree.WattreeError, match=r"observations\[0\].noise: found -"):
        load_calibration(mine)


def test_a_fault_is_not_taken_for_a_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step far outside the interval is learned with a warning, as no class's, and not surely."""
    path = job(tmp_path / "one.yaml")
    mine = calibrated(path, tmp_path / "mine.yaml", 16.0)

    said = capsys.readouterr()
    assert "far outside the interval" in said.err
    assert "all of the step: " in said.err
    assert said.out.index("all of the step") < said.out.index("launches (in compute)")
    places = ("device.h100-sxm-80gb.memory_efficiency", "family.accelerate.module_launch_s")
    times = [load_calibration(mine).constants[each].source.split()[-1] for each in places]
    assert 0.25 < float(times[0]) / float(times[1]) < 4.0
    low, high = step_s(path, mine)[1]
    assert high > 3.0 * low
