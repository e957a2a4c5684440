"""`wattree explain` on real runs of two ranks: classes add up, and injected faults come first."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.distributed.warm import warm_python
from wattree.cli.main import run
from wattree.job.written import yaml_text
from wattree.kineto.op_classes import COMMUNICATION, PRODUCTS
from wattree.kineto.ranks import read_ranks
from wattree.learn.explain import ClassTime, Explanation, explain, of_other_work
from wattree.learn.predicted_step import predicted_step

pytest.importorskip("torch")

SCRIPT = Path(__file__).with_name("traced_training.py")
WORLD, TIMEOUT_S = 2, 600
FAULTS = {
    "ddp": ("slow_rank", "small_buckets", "data", "copies"),
    "fsdp": ("slow_rank", "data", "copies"),
    "pipeline": ("slow_rank", "data", "copies"),
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp", "dp": 2},
    "fsdp": {"preset": "fsdp", "dp": 2},
    "pipeline": {"pp": 2, "dp": 1, "schedule": "gpipe", "micro_batch": 8},
}
CASES = [(kind, fault) for kind, faults in FAULTS.items() for fault in faults]


@contextmanager
def ended(children: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End what is left of the children, whatever happens."""
    try:
        yield
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()


@pytest.fixture(scope="module", params=list(FAULTS))
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the traces of one kind of training, sound and with each fault."""
    kind = str(request.param)
    folder = tmp_path_factory.mktemp(kind)
    words = [str(WORLD), str(folder / "meeting"), kind, str(folder), *FAULTS[kind]]
    children: list[subprocess.Popen[bytes]] = []
    with ended(children):
        children += [
            subprocess.Popen(
                [warm_python(), str(SCRIPT), str(rank), *words],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
            )
            for rank in range(WORLD)
        ]
        for child in children:
            _, errors = child.communicate(timeout=TIMEOUT_S)
            assert child.returncode == 0, errors.decode()
    job = {
        "model": {"ffn": {"width": 32, "depth": 24, "inputs": 32, "outputs": 32}},
        "data": {"global_batch": 16 if kind == "pipeline" else 32},
        "precision": "fp32",
        "software": "pytorch",
        "optimizer": "sgd",
        "cluster": {"node": "2x-epyc-7742"},
        "strategy": STRATEGIES[kind],
    }
    (folder / "job.yaml").write_text(yaml_text(job), encoding="utf-8")
    return folder


def explained(folder: Path, fault: str) -> Explanation:
    """Return why a run is as long as it is."""
    job = wattree.load_job(folder / "job.yaml")
    ranks = read_ranks([folder / f"{fault}-{rank}.json" for rank in range(WORLD)])
    return explain(job, ranks, predicted_step(job))


@pytest.mark.slow
def test_classes_add_up_to_the_step(traced: Path) -> None:
    """Of every rank to 1 %, whatever a busy machine does to the run."""
    kind = next(name for name in FAULTS if traced.name.startswith(name))
    for fault in FAULTS[kind]:
        found = explained(traced, fault)
        for each in found.ranks:
            assert sum(each.classes_s.values()) == pytest.approx(each.step_s, rel=0.01)
        assert sum(each.measured_s for each in found.classes) == pytest.approx(
            found.measured_s, rel=0.01
        )
        assert sum(each.predicted_s for each in found.classes) == pytest.approx(
            found.predicted_s, rel=0.01
        )


@pytest.mark.soak
def test_each_fault_is_named_first(traced: Path) -> None:
    """Before all that differs anyway; a busy machine has faults of its own, so not in every run."""
    kind = next(name for name in FAULTS if traced.name.startswith(name))
    first = {fault: explained(traced, fault).faults[0].fault for fault in FAULTS[kind]}

    assert first == {fault: fault for fault in FAULTS[kind]}


@pytest.mark.slow
def test_the_command_says_so(traced: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files behind --trace are ranks too; the text tells the largest loss and its causes."""
    files = [str(traced / f"data-{rank}.json") for rank in range(WORLD)]

    assert run(["explain", str(traced / "job.yaml"), "--trace", *files]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "a step: the step waits for its input" in said
    assert "num_workers of the DataLoader" in said

    report, picture = traced / "report.html", traced / "ranks.svg"
    words = [
        "--trace",
        *files,
        "--report",
        str(report),
        "--plot",
        f"ranks={picture}",
        "--json",
        "-",
    ]
    assert run(["explain", str(traced / "job.yaml"), *words]) == 0
    assert "the step waits for its input" in report.read_text(encoding="utf-8")
    assert picture.read_text(encoding="utf-8").startswith("<?xml")
    found = json.loads(capsys.readouterr().out)
    assert "data" in {each["fault"] for each in found["faults"]}  # of a busy machine not alone


@pytest.mark.slow
def test_one_rank_says_what_it_cannot_tell(
    traced: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Waiting for others is then communication."""
    words = ["explain", str(traced / "job.yaml"), "--trace", str(traced / "sound-0.json")]

    assert run(words) == 0

    said = capsys.readouterr().err
    assert "1 of 2 ranks" in said
    assert "waiting cannot be distinguished from communicating" in said


@pytest.mark.parametrize(
    ("measured_s", "is_said"), [(0.5, False), (5.0, False), (12.0, True), (0.05, True), (0.0, True)]
)
def test_traces_of_another_job_are_told(measured_s: float, is_said: bool) -> None:  # noqa: FBT001
    """The number of ranks may be the same; matmuls are not slower or faster by that much."""
    classes = [
        ClassTime(name=PRODUCTS, predicted_s=1.0, measured_s=measured_s),
        ClassTime(name=COMMUNICATION, predicted_s=1.0, measured_s=90.0),
    ]

    assert bool([*of_other_work(classes, "job.yaml")]) is is_said
