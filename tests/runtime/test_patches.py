"""An unmodified DDP script as several processes on a device: `scripts/plain_ddp.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np

from tests.distributed.warm import warm_python
from wattree.errors import RunError
from wattree.runtime.colocation.environment import ColocatedProcess
from wattree.runtime.launch.script import reserved_port
from wattree.runtime.patches import PARTS
from wattree.runtime.patches.backend import shared_backend
from wattree.runtime.patches.names import FOLDER
from wattree.runtime.patches.start import left_out

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tests/runtime/scripts/plain_ddp.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the processes of a script ended.

    Attributes:
        codes: Exit codes.
        errors: What the first one wrote to standard error.
        all_errors: What each wrote there.
        found: What each wrote to its file; empty of one that failed.
    """

    codes: list[int]
    errors: str
    all_errors: list[str]
    found: list[dict[str, Any]]


def run(
    folder: Path,
    devices: int,
    processes: int,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    path: Sequence[Path] = (),
) -> Ended:
    """Run the script as a launcher does; it meets by a port of its own."""
    with reserved_port() as port:
        world = devices * processes
        children = []
        for rank in range(world):
            as_dict = ColocatedProcess(
                processes=processes,
                device=rank // processes,
                device_rank=rank % processes,
                local_rank=rank,
            )
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(map(str, [FOLDER, *path, ROOT / "src"])),
                **as_dict.variables(),
                **(variables or {}),
            }
            command = [warm_python(), str(SCRIPT), "--out", str(folder / "found"), *arguments]
            children.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stderr=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            errors = [child.communicate(timeout=600)[1] for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
    files = [folder / f"found.{rank}" for rank in range(world)]
    return Ended(
        codes=[child.returncode for child in children],
        errors=errors[0],
        all_errors=errors,
        found=[json.loads(file.read_text()) if file.exists() else {} for file in files],
    )


def apart(found: Any, wanted: Any) -> float:
    """Return the largest difference."""
    return float(np.abs(np.asarray(found) - np.asarray(wanted)).max())


@pytest.mark.slow
def test_a_script_goes_where_it_goes_with_one_process(tmp_path: Path) -> None:
    """Two processes of one device against one, with NCCL asked for and none here."""
    (tmp_path / "alone").mkdir()
    alone = run(tmp_path / "alone", 1, 1, "--backend", "gloo", "--workers", "2")

    both = run(tmp_path, 1, 2, "--workers", "2")

    assert both.codes == [0, 0], both.errors
    assert alone.errors == ""  # one process of a device is a script as it is
    assert both.errors == (
        "wattree: 2 processes per device: gloo for NCCL, hierarchical averages of gradients, "
        "1/2 of the batch and 1/2 of the workers in each DataLoader\n"
        "wattree: the process group is of gloo instead of nccl: NCCL takes one rank of a device\n"
    )
    assert [each["rows"] for each in both.found] == [[4] * 12] * 2
    assert alone.found[0]["rows"] == [8] * 12
    assert {each["workers"] for each in both.found} == {1}
    assert apart(both.found[0]["parameters"], alone.found[0]["parameters"]) < 1e-12
    assert both.found[0]["parameters"] == both.found[1]["parameters"]


@pytest.mark.slow
def test_a_batch_for_each_process_has_a_learning_rate_to_match(tmp_path: Path) -> None:
    """Under the other rule; and torch's hook for bfloat16 is followed, batch norm mentioned."""
    variables = {"WATTREE_BATCH_RULE": "fixed-per-process", "WATTREE_UNPATCHED": "workers"}

    both = run(tmp_path, 1, 2, "--bf16", "--norm", variables=variables)

    assert both.codes == [0, 0], both.errors
    assert both.errors.splitlines()[0] == (
        "wattree: 2 processes per device: gloo for NCCL, hierarchical averages of gradients, "
        "the whole batch in each DataLoader, learning rates times 2"
    )
    assert [each["rows"] for each in both.found] == [[8] * 6] * 2
    assert both.found[0]["lr"] == pytest.approx(0.2)
    assert both.found[0]["parameters"] == both.found[1]["parameters"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (
            ["--batch", "7"],
            {},
            "error: DataLoader(batch_size=…): found 7, expected a multiple of 2: the processes of "
            "a device would take different numbers of steps; use such a batch, another number of "
            "processes, or --batch-rule fixed-per-process; WATTREE_UNPATCHED=batch leaves batches "
            "to the script, as of an evaluation in which each process takes all samples\n",
        ),
        (
            ["--own-hook"],
            {"WATTREE_REDUCE": "flat"},
            "error: register_comm_hook: found the script's own hook '<lambda>', expected "
            "allreduce_hook or bf16_compress_hook: gradients of processes that share a device are "
            "averaged by a hook already; WATTREE_UNPATCHED=hook leaves that out\n",
        ),
    ],
)
def test_what_would_go_wrong_ends_a_script(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], message: str
) -> None:
    """With a line, and no stack of what changed torch; the other may see its peer gone."""
    both = run(tmp_path, 1, 2, *arguments, variables=variables)
    refused = [text for code, text in zip(both.codes, both.all_errors, strict=True) if code == 2]

    assert refused
    assert set(both.codes) <= {1, 2}  # by itself, or as its peer is gone
    assert all(text.endswith(message) for text in refused)


def test_another_sitecustomize_is_imported_as_well(tmp_path: Path) -> None:
    """Clusters set up Python by one; and what has no torch is left alone."""
    (tmp_path / "sitecustomize.py").write_text("print('the cluster set this up')\n")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, [FOLDER, tmp_path, ROOT / "src"])),
        **ColocatedProcess(processes=2, device=0, device_rank=0).variables(),
    }

    done = subprocess.run(
        [sys.executable, "-c", "import sitecustomize, sys; print('torch' in sys.modules)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("the cluster set this up\nFalse\n", "")


def test_a_python_without_wattree_is_told(tmp_path: Path) -> None:
    """It would run the script q times otherwise."""
    environment = {
        "PYTHONPATH": str(FOLDER),
        **ColocatedProcess(processes=2, device=0, device_rank=0).variables(),
    }

    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path[:0] = [{str(FOLDER)!r}]\nimport sitecustomize\nprint('ran')",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {sys.executable} cannot import wattree: wattree launch needs wattree installed in "
        "the Python that runs the script\n"
    )


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("nccl", "gloo"),
        ("NCCL", "gloo"),
        ("cpu:gloo,cuda:nccl", "gloo"),
        ("gloo", "gloo"),
        ("mpi", "mpi"),
        (None, None),
    ],
)
def test_only_nccl_is_replaced(asked: str | None, given: str | None) -> None:
    """As it alone refuses a second rank of a device."""
    assert shared_backend(asked) == given


def test_a_script_that_wraps_no_model_is_told_once() -> None:
    """At the first step of its optimizer: its processes train apart."""
    script = """
import torch
from wattree.runtime.colocation.environment import ColocatedProcess
from wattree.runtime.patches.model import change_model
change_model(ColocatedProcess(processes=2, device=0, device_rank=0, local_rank=0))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
    ended = subprocess.run(
        [warm_python(), "-c", script], capture_output=True, text=True, check=True, timeout=600
    )

    assert ended.stderr.count("no model is wrapped with DistributedDataParallel") == 1


def test_parts_can_be_left_out_by_name() -> None:
    """And a name that is none is an error, not a part that stays."""
    assert left_out({"WATTREE_UNPATCHED": "batch, workers,"}) == {"batch", "workers"}
    assert left_out({"WATTREE_UNPATCHED": ",".join(PARTS)}) == set(PARTS)
    with pytest.raises(RunError) as caught:
        left_out({"WATTREE_UNPATCHED": "batches"})
    assert str(caught.value) == (
        "WATTREE_UNPATCHED: found 'batches', expected any of hook, backend, batch, workers, "
        "learning-rate"
    )


def test_a_loader_made_of_one_that_has_its_share_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries make loaders anew with another sampler: a half of a half would be a quarter."""
    from torch.utils.data import DataLoader

    from wattree.runtime.patches.loader import change_loader
    from wattree.runtime.tune import watch
    from wattree.runtime.tune.trial import Trial

    half = ColocatedProcess(processes=2, device=0, device_rank=0, local_rank=0)
    trial = Trial(folder=tmp_path, batch_factor=3)
    changes = {
        (4, 4): lambda: change_loader(half, batch=True, workers=True),
        (24, 2): lambda: watch._watch_loaders(watch.TrialWatch(trial, rank=0), trial),
    }
    for (batch, asked), change in changes.items():  # trials of larger batches have one process
        with monkeypatch.context() as patched:
            patched.setattr(DataLoader, "__init__", DataLoader.__init__)  # as it is, afterward
            change()
            loader = DataLoader(list(range(48)), batch_size=8, num_workers=asked)
            size, count = loader.batch_sampler.batch_size, loader.num_workers
            again = DataLoader(loader.dataset, batch_size=size, num_workers=count)
            whole = DataLoader(list(range(48)), batch_size=loader.batch_size * 2)

        assert (loader.batch_size, loader.num_workers) == (batch, 2)
        assert (again.batch_size, again.num_workers) == (batch, 2)
        assert whole.batch_size == 2 * batch * batch // 8
