"""Frameworks' own parsers read what is exported for them, and understand it as it is meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.test_round_trip import random_jobs
from wattree.errors import WattreeError
from wattree.frameworks import FRAMEWORKS, ConcreteJob
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.trainer_arguments import OPTIMIZERS
from wattree.frameworks.zero_json import STAGES
from wattree.job.engines import engine_of

pytestmark = pytest.mark.frameworks

PROGRAM = Path(__file__).with_name("parsers.py")
COUNT = 12


def exported(name: str, folder: Path) -> tuple[list[ConcreteJob], list[Path]]:
    """Return some jobs that a framework can express, and the folders that they are written to."""
    jobs, folders = [], []
    for job in random_jobs(name, seed=3):
        try:
            concrete = concrete_job(job)
            files, _ = recipe_files(FRAMEWORKS[name], concrete)
        except WattreeError:
            continue
        jobs.append(concrete)
        folders.append(folder / str(len(jobs)))
        folders[-1].mkdir()
        for file, text in (files | {"ranks": str(concrete.options.ranks)}).items():
            (folders[-1] / file).write_text(text, encoding="utf-8")
        if len(jobs) == COUNT:
            return jobs, folders
    raise AssertionError(f"{len(jobs)} jobs can be exported to {name}")


def parsed(name: str, folders: list[Path]) -> list[dict[str, Any]]:
    """Return what a framework's parser understands of folders."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), name, *map(str, folders)],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, "DS_ACCELERATOR": "cpu", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    line = next(line for line in found.stdout.splitlines() if line.startswith("PARSED "))
    values: list[dict[str, Any]] = json.loads(line.removeprefix("PARSED "))
    return values


def test_deepspeed_reads_its_json(tmp_path: Path) -> None:
    """`DeepSpeedConfig` checks batches against ranks, and every section by a model of its own."""
    pytest.importorskip("deepspeed")
    jobs, folders = exported("deepspeed", tmp_path)
    expected = [
        {
            "stage": STAGES[job.options.memory.sharding],
            "micro_batch": job.options.pipeline.micro_batch,
            "global_batch": job.job.data.global_batch,
            "tp": job.options.tp,
            "ep": job.options.ep,
            "offloads": [
                job.options.traffic.offload.optimizer is not None,
                job.options.traffic.offload.parameters is not None,
            ],
        }
        for job in jobs
    ]

    assert parsed("deepspeed", folders) == expected


def test_accelerate_reads_its_yaml(tmp_path: Path) -> None:
    """What `accelerate launch` hands on is what its plugins then do."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    jobs, folders = exported("accelerate", tmp_path)
    found = parsed("accelerate", folders)
    engines = {"FSDP": "fsdp2", "DEEPSPEED": "deepspeed", "MULTI_GPU": "ddp"}
    for job, values in zip(jobs, found, strict=True):
        options, engine = job.options, engines[engine_of(job.options)]
        expected: dict[str, Any] = {"ranks": options.ranks, "engine": engine}
        if options.ranks == 1:
            continue
        if engine == "fsdp2":
            expected["reshards"] = options.traffic.reshard_after_forward
            expected["recomputes"] = options.memory.recompute == "full"
        if engine == "deepspeed":
            expected["stage"] = STAGES[options.memory.sharding]
        if options.tp * options.cp > 1 or options.memory.sharding == "hybrid":
            is_hybrid = options.memory.sharding == "hybrid"
            expected["degrees"] = [
                options.dp if is_hybrid else 1,
                options.fsdp if is_hybrid else options.dp if engine != "ddp" else 1,
                options.tp,
                options.cp,
            ]
        assert {key: values[key] for key in expected} == expected


def test_the_trainer_reads_its_arguments(tmp_path: Path) -> None:
    """`HfArgumentParser` refuses what is no argument where it does not know the file's others."""
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    jobs, folders = exported("hf-trainer", tmp_path)
    found = parsed("hf-trainer", folders)
    expected = []
    for job in jobs:
        options, engine = job.options, engine_of(job.options)
        expected.append(
            {
                "micro_batch": options.pipeline.micro_batch,
                "accumulation": job.micro_batches,
                "fsdp": engine == "FSDP",
                "reshards": options.traffic.reshard_after_forward if engine == "FSDP" else None,
                "stage": STAGES[options.memory.sharding] if engine == "DEEPSPEED" else None,
                "recomputes": options.memory.recompute == "full",
                "optimizer": OPTIMIZERS[job.job.optimizer],
            }
        )

    assert found == expected


def test_maxtext_reads_its_overrides(tmp_path: Path) -> None:
    """Its own types check meshes and batches."""
    pytest.importorskip("maxtext", reason="needs maxtext, which needs Python 3.12")
    jobs, folders = exported("maxtext", tmp_path)
    found = parsed("maxtext", folders)
    policies = {
        "full": "full",
        "none": "minimal_with_context",
        "selective_matmul": "minimal",
        "selective_attention_matmul": "save_dot_except_mlp",
        "selective_qkv": "save_qkv_proj",
    }
    expected = [
        {
            "global_batch": job.job.data.global_batch,
            "policy": policies[job.options.memory.recompute],
            "length": job.job.data.sequence_length,
        }
        for job in jobs
    ]

    assert found == expected
