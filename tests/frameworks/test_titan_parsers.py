"""torchtitan and Megatron read what is exported for them with their own parsers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import pytest

from tests.frameworks.test_round_trip import random_jobs
from wattree.errors import WattreeError
from wattree.frameworks import FRAMEWORKS, ConcreteJob
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.torchtitan_read import FACTS

pytestmark = pytest.mark.frameworks

PROGRAM: Final = Path(__file__).with_name("titan_parsers.py")
COUNT: Final = 25
#: Folder of a checkout of Megatron-LM (branch core_r0.16.0): its parser is in no wheel.
MEGATRON_LM: Final = "WATTREE_MEGATRON_LM"
#: What a job's optimizer is called.
OPTIMIZERS: Final = {
    "torchtitan": {"adamw": "adamw", "adam": "adam"},
    "megatron-lm": {"adamw": "adam", "momentum": "sgd"},
    "megatron-bridge": {"adamw": "adam", "momentum": "sgd"},
}


def installed(package: str, *, since: str = "0", below: str = "99") -> None:
    """Skip where a package is not installed, or is an earlier or a later one."""
    try:
        found = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed: `make frameworks` installs it")
    release = [int(number) for number in found.split(".")[:2]]
    if not [int(n) for n in since.split(".")] <= release < [int(n) for n in below.split(".")]:
        pytest.skip(f"{package} {found} is installed, expected one from {since} and below {below}")


def exported(
    name: str, folder: Path, needed: str = "launch.sh"
) -> tuple[list[ConcreteJob], list[Path]]:
    """Return some jobs that a framework can express, and the folders that they are written to.

    Args:
        needed: File that the exports have.
    """
    jobs: list[ConcreteJob] = []
    folders: list[Path] = []
    for job in random_jobs(name, seed=5):
        try:
            concrete = concrete_job(job)
            files, _ = recipe_files(FRAMEWORKS[name], concrete)
        except WattreeError:
            continue
        if needed not in files:
            continue
        folders.append(folder / str(len(jobs)))
        folders[-1].mkdir()
        for file, text in (files | {"ranks": str(concrete.options.ranks)}).items():
            (folders[-1] / file).write_text(text, encoding="utf-8")
        jobs.append(concrete)
        if len(jobs) == COUNT:
            break
    return jobs, folders


def parsed(name: str, folders: list[Path], *, path: str = "") -> list[dict[str, Any]]:
    """Return what a framework's parser understands of folders."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), name, *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    line = next(line for line in found.stdout.splitlines() if line.startswith("PARSED "))
    values: list[dict[str, Any]] = json.loads(line.removeprefix("PARSED "))
    return values


def expected(name: str, job: ConcreteJob) -> dict[str, Any]:
    """Return what a job says of what the parsers show."""
    options = job.options
    return {
        "degrees": [options.replicas, options.tp, options.cp, options.pp],
        "layers": job.model.layers,
        "hidden": None if job.shape is None else job.shape.hidden,
        "global_batch": job.job.data.global_batch,
        "optimizer": OPTIMIZERS[name][job.job.optimizer],
    }


def test_torchtitan_reads_its_toml(tmp_path: Path) -> None:
    """Unknown keys are errors there, and so are degrees that do not make up the world."""
    installed("torchtitan", below="0.3")
    installed("triton")
    jobs, folders = exported("torchtitan", tmp_path, "train.toml")

    assert parsed("torchtitan-toml", folders) == [expected("torchtitan", job) for job in jobs]


def test_torchtitan_reads_its_flags(tmp_path: Path) -> None:
    """A flag or an argument that a release no longer has is an error."""
    installed("torchtitan", since="0.3")
    installed("triton")
    jobs, folders = exported("torchtitan", tmp_path, "wattree_config.py")

    assert parsed("torchtitan-flags", folders) == [expected("torchtitan", job) for job in jobs]


def test_functions_of_torchtitans_registry_set_what_is_listed(tmp_path: Path) -> None:
    """A command that names one, and no flags, is read with what it sets."""
    installed("torchtitan", since="0.3")
    installed("triton")
    formats = ("config", "model.converters", "quantize.", "activation_checkpoint.selective")
    folders, read = [], []
    for name in FACTS["configs"]:
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        module = next(each for each in FACTS["blocks"] if name.startswith(each))
        (folders[-1] / "module").write_text(module)
        command = folders[-1] / "command.sh"
        command.write_text(f"torchrun -m torchtitan.train --module {module} --config {name}\n")
        values = FRAMEWORKS["torchtitan"].parse(command).items()
        now = {new: old for old, new in FACTS["since_0.3"].items()}
        read.append({now.get(k, k): value for k, value in values if not k.startswith(formats)})

    assert parsed("torchtitan-registry", folders) == read


def test_megatron_lm_reads_its_flags(tmp_path: Path) -> None:
    """Its checks know what does not go together, such as FSDP and a format of checkpoints."""
    if (checkout := os.environ.get(MEGATRON_LM)) is None:
        pytest.skip(f"{MEGATRON_LM} names no checkout of Megatron-LM, whose parser is in no wheel")
    jobs, folders = exported("megatron-lm", tmp_path)

    found = parsed("megatron-lm", folders, path=checkout)

    assert found == [expected("megatron-lm", job) for job in jobs]


def test_megatron_reads_overrides_of_its_bridge(tmp_path: Path) -> None:
    """A key that is no field would be dropped or refused when training starts."""
    installed("megatron-bridge")
    installed("megatron-core")
    jobs, folders = exported("megatron-bridge", tmp_path)

    found = parsed("megatron-bridge", folders)

    assert found == [expected("megatron-bridge", job) for job in jobs]
