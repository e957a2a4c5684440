"""Refitting by runs: scales that made a run are found again, and errors fall."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.errors import JobError, RunError
from wattree.files import write_atomic
from wattree.hardware.load import CATALOG, load_device
from wattree.job import load_job
from wattree.predict import predicted, run_of, setting_of
from wattree.trace.run import Run, RunOrigin, StageUse
from wattree.trace.run_file import read_run, write_run
from wattree.validation.refit import refit_from_runs
from wattree.validation.trained import JOB_FILE, RUN_FILE

JOB = """
model: {model}
data: {{global_batch: {batch}}}
precision: fp32
software: pytorch
cluster: {{node: {node}, nodes: 2}}
strategy: {{preset: {preset}, tp: {tp}, dp: {dp}}}
"""


def trained(folder: Path, *, batch: int, scales: Mapping[str, float], **changes: Any) -> Path:
    """Return the folder of a run on a machine whose times are scaled. `host` is in seconds."""
    folder.mkdir()
    node = changes.pop("node", "2x-xeon-8480c")
    tp = changes.pop("tp", 1)
    dp = changes.pop("dp", 4 // tp)
    split = {"preset": "tensor" if tp > 1 else "ddp", "tp": tp, "dp": dp}
    write_atomic(folder / JOB_FILE, JOB.format(batch=batch, node=node, model="ffn", **split))
    job, shipped = load_job(folder / JOB_FILE), load_calibration()
    compute, move = scales["computing"], scales["communicating"]
    values = {
        **{
            name: shipped.constants[name].value / compute
            for name in (
                "general.memory_efficiency",
                "pooled.library_bandwidth",
                "pooled.convolution.fp32",
                "pooled.matmul.fp32",
            )
        },
        **{
            name: shipped.constants[name].value / move
            for name in (
                "pooled.bus_efficiency",
                "pooled.bus_reduce_efficiency",
                "general.network_efficiency",
            )
        },
        "pooled.alpha_s": shipped.constants["pooled.alpha_s"].value * move,
        "family.pytorch.step_overhead_s": scales.get(
            "host", shipped.family("pytorch", "step_overhead_s")
        ),
    }
    assert not isinstance(job.strategy, str)
    true = predicted(setting_of(job, shipped.replaced(values)), job.strategy)
    run = run_of(job, true, steps=5, name=folder.name)
    write_run(replace(run, origin=RunOrigin.MEASURED, **changes), folder / RUN_FILE)
    return folder


def test_scales_of_one_run_are_found(tmp_path: Path) -> None:
    """Computing 1.7 times, communicating 0.6 times as long; step and stages then fit to 1 %."""
    folder = trained(tmp_path / "run", batch=256, scales={"computing": 1.7, "communicating": 0.6})
    found = refit_from_runs([folder], out=tmp_path / "cal.yaml")
    scales = {scale.name: scale.factor for scale in found.scales}

    assert scales["computing"] == pytest.approx(1.7, rel=0.01)
    assert scales["communicating"] == pytest.approx(0.6, rel=0.03)
    assert scales["host"] == 1.0
    assert found.error_after < 0.01 < found.error_before
    assert any("runs of one size" in line for line in found.warnings)
    for row in found.runs[0].rows:
        assert row.after_s == pytest.approx(row.measured_s, rel=0.02, abs=1e-6)


def test_exchanges_inside_layers_are_stretched_as_computing_is(tmp_path: Path) -> None:
    """Where processors bear them, a run's stages are not a prediction's: the step alone tells."""
    own = "device.xeon-8480c.exchange_s"
    first = tmp_path / "first.yaml"
    told = "{value: 1e-3, evidence: measured, source: test}"
    first.write_text(f"base: shipped\nconstants:\n  {own}: {told}\n")
    folder = trained(
        tmp_path / "run", batch=256, scales={"computing": 1.7, "communicating": 1.7}, tp=2
    )
    found = refit_from_runs([folder], out=tmp_path / "cal.yaml", calibration=first)
    factors = {scale.name: scale.factor for scale in found.scales}

    assert factors["computing"] == factors["communicating"] != 1.0
    assert found.error_after < 0.01 < found.error_before
    assert any("both are stretched alike" in line for line in found.warnings)


def test_runs_of_several_sizes_tell_the_host_s_time(tmp_path: Path) -> None:
    """What does not grow with the work is overhead of the step."""
    scales = {"computing": 1.2, "communicating": 1.0, "host": 0.02}
    folders = [
        trained(tmp_path / f"run{batch}", batch=batch, scales=scales) for batch in (64, 1024, 4096)
    ]
    found = refit_from_runs(folders, out=tmp_path / "cal.yaml")
    host = load_calibration(tmp_path / "cal.yaml").family("pytorch", "step_overhead_s")

    assert host == pytest.approx(0.02, rel=0.05)
    assert found.scales[0].factor == pytest.approx(1.2, rel=0.02)
    assert found.error_after < 0.01


def test_the_new_file_is_a_calibration_that_others_take(tmp_path: Path) -> None:
    """It lies over the one that ships, says where it is from, and can be refitted again."""
    folder = trained(tmp_path / "run", batch=256, scales={"computing": 1.7, "communicating": 0.6})
    out = tmp_path / "cal.yaml"
    refit_from_runs([folder], out=out)
    again = refit_from_runs([folder], out=out, calibration=out)
    own = load_calibration(out).constants["device.xeon-8480c.convolution.fp32"]

    assert again.error_before < 0.01
    assert own.evidence == "fitted"
    assert own.source.count("refitted by") == 1


def test_shares_of_a_die_are_refitted_as_its_board_has_them(tmp_path: Path) -> None:
    """A PCIe board has less power than the one whose products say what its die reaches."""
    folder = trained(
        tmp_path / "run",
        batch=256,
        scales={"computing": 1.0, "communicating": 1.0},
        node="8x-a100-pcie",
        dp=16,
    )
    refit_from_runs([folder], out=tmp_path / "cal.yaml")
    found, shipped = load_calibration(tmp_path / "cal.yaml"), load_calibration()
    device = load_device("a100-pcie-80gb")
    products, streams = (
        found.constants[f"device.{device.name}.{item}"].value / shipped.device(device, item)
        for item in ("matmul.bf16", "library_bandwidth")
    )

    assert products == pytest.approx(streams, rel=1e-4)


def test_a_run_that_does_not_communicate_says_so(tmp_path: Path) -> None:
    """Its scale stays."""
    folder = trained(tmp_path / "run", batch=256, scales={"computing": 1.7, "communicating": 1.0})
    run = read_run(folder / RUN_FILE)
    alone = {
        "materials": StageUse(busy_s=0.0, exposed_s=0.0),
        "computing": StageUse(busy_s=run.wall_s, exposed_s=run.wall_s),
        "communicating": StageUse(busy_s=0.0, exposed_s=0.0),
    }
    write_run(replace(run, stages=alone), folder / RUN_FILE)
    found = refit_from_runs([folder], out=tmp_path / "cal.yaml")

    assert found.scales[1].factor == 1.0
    assert any("no run communicates" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"origin": RunOrigin.SIMULATED}, "origin: found 'simulated'"),
        ({"iterations": 0}, "iterations: found 0"),
        ({"stages": {}}, "stages: none are there"),
    ],
)
def test_runs_that_tell_nothing_are_refused(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    """With the file and what it lacks."""
    folder = trained(tmp_path / "run", batch=256, scales={"computing": 1.0, "communicating": 1.0})
    run: Run = read_run(folder / RUN_FILE)
    write_run(replace(run, **changes), folder / RUN_FILE)

    with pytest.raises(RunError, match=told):
        refit_from_runs([folder], out=tmp_path / "cal.yaml")
    assert not (tmp_path / "cal.yaml").exists()


def test_runs_on_different_devices_are_refused(tmp_path: Path) -> None:
    """One calibration is of one device type."""
    scales = {"computing": 1.0, "communicating": 1.0}
    folders = [
        trained(tmp_path / "a", batch=256, scales=scales),
        trained(tmp_path / "b", batch=256, scales=scales, node="2x-epyc-7742"),
    ]

    with pytest.raises(RunError, match="runs are of xeon-8480c, epyc-7742"):
        refit_from_runs(folders, out=tmp_path / "cal.yaml")


def test_a_run_of_another_machine_is_refused(tmp_path: Path) -> None:
    """A hundredfold difference is no matter of calibration."""
    folder = trained(tmp_path / "run", batch=256, scales={"computing": 100.0, "communicating": 1.0})

    with pytest.raises(RunError, match="not the machine of the run"):
        refit_from_runs([folder], out=tmp_path / "cal.yaml")


def test_paths_of_the_job_are_those_of_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a run holds a copy of the job, not the files it names."""
    shutil.copytree(CATALOG / "devices", tmp_path / "devices")
    node = (CATALOG / "nodes" / "2x-xeon-8480c.yaml").read_text()
    (tmp_path / "own.yaml").write_text(
        node.replace("device: xeon-8480c", "device: ./devices/xeon-8480c.yaml")
    )
    scales = {"computing": 1.3, "communicating": 1.0}
    folder = trained(tmp_path / "run", batch=256, scales=scales)
    text = (folder / JOB_FILE).read_text()
    (folder / JOB_FILE).write_text(text.replace("2x-xeon-8480c", "./own.yaml"))
    found = refit_from_runs([folder], out=tmp_path / "cal.yaml")
    (tmp_path / "own.yaml").unlink()

    assert found.scales[0].factor == pytest.approx(1.3, rel=0.01)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match=r"job.yaml: cluster.node: .*own.yaml: there is no such"):
        refit_from_runs([folder], out=tmp_path / "cal.yaml")
