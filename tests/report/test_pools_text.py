"""Pools of different nodes as text."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from wattree.cli.main import app
from wattree.job import Job, job_from_mapping
from wattree.predict import simulate
from wattree.report import show_result
from wattree.report.perfetto import chrome_trace

JOB = {
    "model": {
        "transformer": {"layers": 28, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 32_000}
    },
    "data": {"sequence_length": 2048, "global_batch": 64},
    "cluster": {
        "pools": [{"node": "dgx-h100"}, {"node": "dgx-1"}],
        "fabric": "infiniband-ndr-fat-tree",
    },
    "strategy": {"preset": "ddp", "pp": 2, "micro_batch": 2},
}


def job() -> Job:
    """Return a job whose second stage does not fit on its V100 of 16 GB, two on an adapter."""
    return job_from_mapping(JOB)


def test_a_result_shows_who_runs_where() -> None:
    """With memory of each pool, and the class that is the fullest."""
    console = Console(file=io.StringIO(), width=120)
    show_result(simulate(job()).result, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()

    title = next(line for line in lines if line.startswith("Memory of the fullest"))
    assert "(stage 1 on v100-sxm2-16gb (8 ranks))" in title
    (fast,) = (line for line in lines if line.strip().startswith("1 x dgx-h100 "))
    (slow,) = (line for line in lines if line.strip().startswith("1 x dgx-1 "))
    assert "stage 0 (8 ranks)" in fast
    assert "stage 1 (8 ranks)" in slow
    assert "of 15.78 GiB" in slow


def test_the_trace_names_the_device_of_each_rank_class() -> None:
    """A process for each."""
    events = chrome_trace(simulate(job()).trace)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}

    assert "stage 0 on h100-sxm-80gb (8 ranks)" in names
    assert "stage 1 on v100-sxm2-16gb (8 ranks)" in names


def test_what_does_not_fit_is_told_with_device_and_stage(tmp_path: Path) -> None:
    """On the error stream where the JSON takes the other."""
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB), encoding="utf-8")
    done = CliRunner().invoke(app(), ["simulate", str(path), "--json", "-"])

    assert done.exit_code == 3
    assert "does not fit in memory: stage 1 on v100-sxm2-16gb (8 ranks) needs" in done.stderr
    pools = json.loads(done.stdout)["pools"]
    assert [pool["memory_fits"] for pool in pools] == [True, False]


def test_plain_jobs_say_nothing_of_pools() -> None:
    """As before there were any."""
    plain = job_from_mapping(JOB | {"cluster": {"node": "dgx-h100", "nodes": 2}})
    console = Console(file=io.StringIO(), width=120)
    show_result(simulate(plain).result, console)
    assert isinstance(console.file, io.StringIO)

    assert "Pools" not in console.file.getvalue()
