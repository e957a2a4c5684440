"""`wattree train` as its users call it: by itself, under launchers, interrupted, failing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed.own_models import MIXER
from tests.distributed.ranks import Forked, start_python
from tests.distributed.warm import warm_python
from wattree.runtime.launch.script import reserved_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
JOB = """
model: {ffn: {width: 32, depth: 2, activation: tanh}}
data: {global_batch: 8, source: synthetic-regression}
precision: fp32
optimizer: adam
cluster: {node: 2x-epyc-7742}
strategy: {preset: phantom, tp: 2, ghosts: 4}
training: {steps: STEPS, seed: 1, learning_rate: 0.01, checkpoint: {dir: saved, every: 1000000}}
"""


def _environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMI", "SLURM_", "WATTREE_"))
        and name not in {"RANK", "WORLD_SIZE"}
    }
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wattree", *arguments]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A short job of two ranks in a folder of its own."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB.replace("STEPS", "30"))
    return path


def _forked_run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command without loading PyTorch anew, as a command of its own or as a rank."""
    return _ended(folder, "-m", "wattree", *words, **more)


def _ended(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python without loading PyTorch anew."""
    output, errors = folder / "said.txt", folder / "told.txt"
    given = {**_environment(), **more}
    command = start_python(words, output, given, errors=errors, folder=folder)
    try:
        code = command.wait(600)
    finally:
        command.kill()
    assert code is not None
    texts = [place.read_text() for place in (output, errors)]
    return subprocess.CompletedProcess(words, code, *texts)


def _run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**_environment(), **more},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_it_starts_the_ranks_itself_and_compares(job: Path) -> None:
    """One command: loss, bytes, stages, predicted next to measured, files for others to read."""
    from wattree import load_job
    from wattree.trace import RunOrigin, read_run

    words = ("--compare", "--out", "run", "--trace", "trace.json", "--json", "result.json")
    found = _forked_run(job.parent, "train", "job.yaml", *words)
    assert found.returncode == 0, found.stderr
    assert "ffn on 2 ranks: trained 30 steps" in found.stdout
    assert "step 30/30  loss" in found.stderr
    assert "sent by a rank" in found.stdout
    result = json.loads((job.parent / "result.json").read_text())
    assert len(result["training"]["losses"]) == 30
    comparison = result["comparison"]
    # No one has profiled this machine.
    assert found.stdout.count("predicted for epyc-7742 as its datasheet has it") == 1
    assert comparison["unprofiled"] == ["epyc-7742"]
    assert comparison["measured_sent_bytes"] == comparison["predicted_sent_bytes"] == 2 * 2 * 4 * 32
    names = [figure["name"] for figure in comparison["figures"]]
    assert names == ["step", "materials", "computing", "communicating"]
    parts_s = sum(figure["measured_s"] for figure in comparison["figures"][1:])
    assert parts_s == pytest.approx(result["step_time_s"], rel=1e-6)
    run = read_run(job.parent / "run" / "run.json")
    # On a quick machine the run is too short for a meter: nothing is read, and none invented.
    assert run.origin is not RunOrigin.SIMULATED
    assert (run.origin is RunOrigin.UNREAD) == (result["energy_j"]["total"] is None)
    assert run.iterations == result["training"]["measured_steps"]
    assert load_job(job.parent / "run" / "job.yaml").strategy == load_job(job).strategy
    events = json.loads((job.parent / "trace.json").read_text())["traceEvents"]
    assert {"forward", "backward", "layers.0"} <= {event["name"] for event in events}


@pytest.mark.parametrize(
    ("strategy", "calls"), [("preset: tensor", 2), ("preset: phantom, ghosts: 4", 1)]
)
def test_the_layers_that_were_shared_are_those_compared(
    job: Path, strategy: str, calls: int
) -> None:
    """Of a module of the user's, `train` shares the feed-forward layers alone, in every call."""
    (job.parent / "net.py").write_text(MIXER)
    job.write_text(
        "model: {module: net.py:build, inputs: ['float32[batch, 4, 16]'], "
        f"arguments: {{calls: {calls}}}}}\n"
        "data: {global_batch: 8}\nprecision: fp32\noptimizer: sgd\n"
        "cluster: {node: 2x-epyc-7742}\ntraining: {steps: 4}\n"
        f"strategy: {{{strategy}, tp: 2}}\n"
    )

    found = _forked_run(job.parent, "train", "job.yaml", "--compare", "--json", "result.json")

    assert found.returncode == 0, found.stderr
    comparison = json.loads((job.parent / "result.json").read_text())["comparison"]
    assert comparison["predicted_sent_bytes"] == comparison["measured_sent_bytes"] > 0


def test_presets_are_shown_side_by_side(job: Path) -> None:
    """The same degrees, one run after the other."""
    found = _forked_run(job.parent, "train", "job.yaml", "--against", "tensor")
    assert found.returncode == 0, found.stderr
    title, *lines = found.stdout.splitlines()
    assert title.split() == ["phantom", "tensor"]
    (sent,) = [line.split()[4:] for line in lines if line.startswith("sent by a rank")]
    # Two all-gathers and two reduce-scatters of ghosts; of shards one reduce-scatter less.
    assert sent == ["512", "B", "1.50", "KiB"]
    assert not (job.parent / "saved").exists()  # checkpoints would be of both
    for option in (["--compare"], ["--out", "runs"]):  # a folder was left empty
        refused = _forked_run(job.parent, "train", "job.yaml", "--against", "tensor", *option)
        assert (refused.returncode, "--compare are of one" in refused.stderr) == (2, True)
    assert not (job.parent / "runs").exists()


#: Stands in for `srun`, which needs a cluster: starts tasks with the variables that Slurm gives
#: them (SchedMD, "srun", section "OUTPUT ENVIRONMENT VARIABLES"), and ends with the worst of them.
_SRUN = """
import os, subprocess, sys
tasks = int(sys.argv[sys.argv.index("-n") + 1])
hosts = {"SLURM_STEP_NODELIST": "localhost,gpu[007-008]", "SLURM_JOB_NODELIST": "other[1-2]"}
step = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "3", "SLURM_NTASKS": "64", "SLURM_NNODES": "1"}
count = {"SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_STEP_TASKS_PER_NODE": f"{tasks}"}
children = [
    subprocess.Popen(
        sys.argv[sys.argv.index("-n") + 2 :],
        env={**os.environ, **hosts, **step, **count}
        | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
    )
    for rank in range(tasks)
]
sys.exit(max(abs(child.wait()) for child in children))
"""


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
def test_launchers_start_its_ranks(job: Path, launcher: str, *, soaking: bool) -> None:
    """As many as the job has; other numbers are rejected."""
    mpirun = shutil.which("mpirun")
    commands = {
        "srun": [sys.executable, "-c", _SRUN, "-n", "2", warm_python(), "-m", "wattree"],
        "torchrun": [
            warm_python(),
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "wattree",
        ],
        "mpirun": [
            mpirun or "",
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            "2",
            warm_python(),
            "-m",
            "wattree",
        ],
    }
    if launcher == "mpirun" and mpirun is None:
        pytest.skip("no mpirun here: Open MPI is not installed")
    words = [*commands[launcher], "train", "job.yaml", "--json", "result.json"]
    found = _run(words, job.parent)
    assert found.returncode == 0, found.stderr
    result = json.loads((job.parent / "result.json").read_text())
    assert result["training"]["launcher"] == launcher
    assert result["ranks"] == 2
    if launcher == "srun" and soaking:  # each task tells the mistake that one does below
        words[words.index("-n") + 1] = "3"
        found = _run(words, job.parent)
        assert found.returncode == 2
        assert "has 2 ranks (dp 1 × tp 2), but srun started 3; start 2" in found.stderr


def test_as_many_ranks_as_the_job_has(job: Path) -> None:
    """One rank of torchrun for a job of two is refused at once, with what to do."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    found = _forked_run(job.parent, "train", "job.yaml", **alone)
    assert found.returncode == 2
    assert "has 2 ranks (tp 2), but torchrun started 1; start 2" in found.stderr


def test_constants_that_cannot_be_read_are_told_before_training(job: Path) -> None:
    """Not after it."""
    found = _forked_run(job.parent, "train", "job.yaml", "--compare", "--calibration", "no.yaml")
    assert found.returncode != 0
    assert found.stderr == "wattree: no.yaml: there is no such file; check the path\n"


def test_a_peer_that_does_not_come_is_missed(job: Path) -> None:
    """After the time that was given, not after half an hour."""
    alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    words = ("train", "job.yaml", "--timeout", "2 s")
    with reserved_port() as port:
        found = _forked_run(job.parent, *words, MASTER_PORT=str(port), **alone)
    assert found.returncode == 2
    assert "rank 0 of 2: not all ranks came" in found.stderr


@contextlib.contextmanager
def _training(job: Path, *words: str, steps: int = 1_000_000) -> Iterator[tuple[Forked, list[int]]]:
    """Train long; give the process and its ranks once they train."""
    job.write_text(JOB.replace("STEPS", str(steps)))
    errors = job.parent / "errors.txt"
    errors.touch()
    starter = start_python(
        ["-m", "wattree", "train", "job.yaml", *words],
        Path(os.devnull),
        _environment(),
        errors=errors,
        folder=job.parent,
    )
    try:
        until_s = time.monotonic() + 600
        while "step 1/" not in errors.read_text():
            assert time.monotonic() < until_s, errors.read_text()
            assert starter.poll() is None, errors.read_text()
            time.sleep(0.05)
        assert starter.pid is not None
        yield starter, _children(starter.pid)
    finally:
        if starter.poll() is None:
            starter.kill()  # its ranks notice
        starter.wait()


def _children(number: int) -> list[int]:
    listed = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return [int(child) for child in listed]


def _are_gone(numbers: list[int]) -> bool:
    until_s = time.monotonic() + 600
    while time.monotonic() < until_s:
        if not any(Path(f"/proc/{number}").exists() for number in numbers):
            return True
        time.sleep(0.05)
    return False


def test_asked_to_stop_it_saves_and_goes_on_later(job: Path) -> None:
    """SIGTERM, as batch systems send it: exit code 130, a checkpoint, no process left."""
    with _training(job) as (starter, ranks):
        assert len(ranks) == 2
        starter.send_signal(signal.SIGTERM)
        assert starter.wait(timeout=600) == 130
    assert _are_gone(ranks)
    saved = [path.name for path in (job.parent / "saved").iterdir()]
    assert len(saved) == 1
    step = int(saved[0].removeprefix("step-"))
    errors = (job.parent / "errors.txt").read_text()
    assert f"step {step}: saved to" in errors
    assert "wattree: interrupted" in errors

    job.write_text(JOB.replace("STEPS", str(step + 3)))
    found = _forked_run(job.parent, "train", "job.yaml", "--json", "-")
    assert found.returncode == 0, found.stderr
    use: dict[str, Any] = json.loads(found.stdout)["training"]
    assert (use["first_step"], use["steps"], len(use["losses"])) == (step, step + 3, step + 3)


def test_asked_to_stop_when_all_is_trained_it_still_tells_the_result(job: Path) -> None:
    """A job that goes on later would find nothing left to do, and no result."""
    with _training(job, "--json", "result.json", steps=200) as (starter, ranks):
        until_s = time.monotonic() + 600
        while not (job.parent / "saved" / "step-200").exists() and time.monotonic() < until_s:
            time.sleep(0.005)
        starter.send_signal(signal.SIGTERM)
        assert starter.wait(timeout=600) == 0
    assert _are_gone(ranks)
    use = json.loads((job.parent / "result.json").read_text())["training"]
    assert len(use["losses"]) == 200


#: Trains as the command does; a signal comes while the result is written.
_DISTURBED = """
import signal, sys
from wattree.cli.main import run
import wattree.cli.train
def disturbed(*arguments):
    signal.raise_signal(signal.SIGINT)
    print("delivered")
sys.modules["wattree.cli.train"].deliver_trained = disturbed
raise SystemExit(run(["train", "job.yaml", "--quiet"]))
"""


def test_a_signal_does_not_cut_the_result_short(job: Path) -> None:
    """It comes while the result is written: the run is over, and nothing is left to stop."""
    alone = JOB.replace("STEPS", "3").replace("{preset: phantom, tp: 2, ghosts: 4}", "{dp: 1}")
    job.write_text(f"{alone}place: {{devices: [0]}}\n")

    found = _ended(job.parent, "-c", _DISTURBED)
    assert (found.returncode, found.stdout) == (0, "delivered\n"), found.stderr


ABORTING = """
import ctypes
from torch import nn
def build():
    libc = ctypes.CDLL(None)
    getattr(libc, "__cxa_atexit")(libc.abort, None, None)  # as a library's destructors do
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
"""


@pytest.fixture(scope="module")
def by_itself(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return how a run of three replicas ended that nothing was loaded for, and its result.

    Forked ranks of these tests leave without destructors, whatever the command does.
    """
    folder = tmp_path_factory.mktemp("alone")
    (folder / "model.py").write_text(ABORTING)
    (folder / "job.yaml").write_text(
        "model: {module: 'model.py:build', inputs: ['float32[batch, 8]']}\n"
        "data: {global_batch: 6, source: synthetic-regression}\nprecision: fp32\noptimizer: sgd\n"
        "cluster: {node: 2x-epyc-7742, nodes: 2}\nplace: {devices: 0-2}\n"
        "strategy: {preset: ddp, dp: 3}\ntraining: {steps: 3, learning_rate: 0.01}\n"
    )
    words = ("train", "job.yaml", "--quiet", "--json", "result.json")
    return _run(_command(*words), folder), folder / "result.json"


def test_a_library_that_aborts_at_the_end_does_not_undo_a_run(by_itself: tuple[Any, Path]) -> None:
    """All is trained and written then: the command says so, and its exit code is 0."""
    found, result = by_itself

    assert found.returncode == 0, found.stderr
    assert len(json.loads(result.read_text())["training"]["losses"]) == 3


def test_a_quiet_run_says_nothing_of_how_it_is_made(by_itself: tuple[Any, Path]) -> None:
    """PyTorch warns of buckets that are kept for more than two replicas, which is meant so."""
    found, _ = by_itself

    assert (found.returncode, found.stderr) == (0, "")


def test_a_rank_that_dies_ends_the_job_soon(job: Path) -> None:
    """The others do not wait for it, no one is left, and it is named."""
    with _training(job) as (starter, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        assert starter.wait(timeout=600) == 1
    assert _are_gone(ranks)
    lines = (job.parent / "errors.txt").read_text().splitlines()
    told = [line for line in lines if line.startswith("wattree: ")]
    assert len(told) == 1
    assert told[0].startswith("wattree: rank 1 was killed by signal 9 (SIGKILL)")
