"""Out and in again: the same strategy, whatever it is, for every framework.

Strategies are drawn at random from what a framework can express: what it refuses is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from wattree.capture import TransformerShape
from wattree.errors import WattreeError
from wattree.frameworks import FRAMEWORKS, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.framework import ConcreteJob
from wattree.job import Job, job_from_mapping
from wattree.strategy.described import describe_options

#: Strategies for each framework.
COUNT: Final = 200
#: Drawn at most for one that can be exported.
MOST_DRAWN: Final = 200 * COUNT


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What random jobs of one framework are drawn from.

    Attributes:
        models: Names in the catalog.
        values: Key of a strategy → values.
        precisions, optimizers: Of the job.
        file: Of the exported folder, which is imported.
    """

    models: tuple[str, ...]
    values: dict[str, tuple[Any, ...]]
    precisions: tuple[str, ...] = ("bf16",)
    optimizers: tuple[str, ...] = ("adamw",)
    file: str


DEGREES: Final[dict[str, tuple[Any, ...]]] = {
    "dp": (1, 2, 4, 8),
    "fsdp": (1, 1, 2, 8),
    "tp": (1, 1, 2, 8),
    "cp": (1, 1, 1, 2),
    "pp": (1, 1, 2, 4),
    "micro_batch": (1, 2),
}
DRAWN: Final[dict[str, Drawn]] = {
    "torchtitan": Drawn(
        models=("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "llama-3.1-405b"),
        values={
            **DEGREES,
            "ep": (1, 1, 2, 4),
            "sharding": ("none", "zero2", "zero3", "zero3", "hybrid"),
            "recompute": ("none", "full", "selective_operator", "block_2", "block_3"),
            "schedule": ("1f1b", "gpipe", "interleaved", "breadth-first", "zb-v", "dualpipev"),
            "virtual_stages": (1, 2, 4),
            "context": ("gather", "ring"),
            "sequence_parallel": (True,),
            "expert_over_tensor": (True, False),
            "overlap_tensor": (None, True, False),
            "overlap_optimizer": (False, True),
            "reshard_after_forward": (True, True, False),
            "offload": (None, None, {"optimizer": "host", "parameters": "host"}),
        },
        precisions=("bf16", "fp8", "mxfp8", "tf32"),
        optimizers=("adamw", "adam"),
        file="train.toml",
    ),
    "megatron-lm": Drawn(
        models=("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt3-175b", "llama-3.1-405b"),
        values={
            **DEGREES,
            "ep": (1, 1, 2, 4),
            "sharding": ("none", "zero1", "zero1", "zero2", "zero3", "hybrid"),
            "recompute": ("none", "full", "selective", "block_2", "block_4"),
            "schedule": ("1f1b",),
            "virtual_stages": (1, 2, 4),
            "context": ("gather", "ring", "ulysses"),
            "sequence_parallel": (True, True, False),
            "expert_over_tensor": (True, False),
            "overlap_gradients": (None, True, False),
            "overlap_parameters": (None, True, False),
            "overlap_tensor": (None, True, False),
            "overlap_pipeline": (None, True, False),
            "offload": (
                None,
                {"optimizer": "host"},
                {"activations": {"layers": 2, "to": "host", "prefetch": 1}},
            ),
        },
        precisions=("bf16", "fp8", "mxfp8", "nvfp4", "fp16"),
        optimizers=("adamw", "momentum"),
        file="launch.sh",
    ),
}


def random_jobs(name: str, seed: int) -> Iterator[Job]:
    """Yield jobs, most of which no framework expresses and some of which no one can run."""
    drawn, choose = DRAWN[name], random.Random(seed)
    for _ in range(MOST_DRAWN):
        strategy = {key: choose.choice(values) for key, values in drawn.values.items()}
        ranks = 1
        for axis in ("dp", "fsdp", "tp", "cp", "pp", "ep"):
            ranks *= strategy.get(axis, 1)
        place: dict[str, Any] = {}
        if ranks < 8:
            place = {"place": {"devices": f"0-{ranks - 1}" if ranks > 1 else "0"}}
        try:
            yield job_from_mapping(
                {
                    "model": choose.choice(drawn.models),
                    "data": {
                        "sequence_length": choose.choice((2048, 8192)),
                        "global_batch": choose.choice((64, 128, 512)),
                    },
                    "cluster": {"node": "dgx-b200", "nodes": max(1, ranks // 8)},
                    "precision": choose.choice(drawn.precisions),
                    "optimizer": choose.choice(drawn.optimizers),
                    "compile": choose.choice((True, False)),
                    "software": FRAMEWORKS[name].software[0],
                    "strategy": {k: v for k, v in strategy.items() if v is not None},
                    **place,
                },
                "job.yaml",
            )
        except WattreeError:
            continue


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_an_exported_strategy_comes_back(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A user who exports, edits a path and imports must not plan something else."""
    done, different = 0, []
    for job in random_jobs(name, seed=19):
        try:
            concrete = concrete_job(job)
            files, _ = recipe_files(FRAMEWORKS[name], concrete)
        except WattreeError:
            continue
        back = _imported(files, name, concrete, tmp_path)
        before, after = _facts(concrete), _facts(back)
        different += [(key, before[key], after[key]) for key in before if before[key] != after[key]]
        if (done := done + 1) == COUNT:
            break
    record_property("exported", done)

    assert different[:1] == []
    assert done == COUNT


def _imported(files: dict[str, str], name: str, concrete: ConcreteJob, folder: Path) -> ConcreteJob:
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    ranks, nodes = concrete.options.ranks, concrete.job.cluster.nodes
    found = import_recipe(
        folder / DRAWN[name].file, name, node="dgx-b200", nodes=nodes if ranks >= 8 else None
    )
    assert found.not_understood == ()
    return concrete_job(job_from_mapping(found.job, "imported"))


def _sizes(shape: TransformerShape | None) -> dict[str, object]:
    """Return the numbers of a model, less its names and what no step depends on."""
    assert shape is not None
    aside = {"name", "architecture", "sources", "activation", "vocab", "unread_parameters"}
    if shape.positions != "learned":
        aside |= {"max_positions", "position_rows"}
    return {key: value for key, value in asdict(shape).items() if key not in aside}


def _facts(concrete: ConcreteJob) -> dict[str, object]:
    """Return what decides a step."""
    job = concrete.job
    return {
        "strategy": describe_options(concrete.options),
        "model": _sizes(concrete.shape),
        "data": (job.data.global_batch, job.data.sequence_length),
        "numbers": (job.precision, job.optimizer, concrete.compiled),
        "devices": (job.cluster.nodes, job.devices),
    }
