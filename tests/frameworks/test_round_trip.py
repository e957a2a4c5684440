"""Out and in again: the same strategy, whatever it is, for every framework.

Strategies are drawn at random from what a framework can express: what it refuses is drawn again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from wattree.capture import TransformerShape
from wattree.errors import WattreeError
from wattree.frameworks import FRAMEWORKS, Given, import_recipe
from wattree.frameworks.concrete import concrete_job
from wattree.frameworks.export import recipe_files
from wattree.frameworks.framework import ConcreteJob
from wattree.job import Job, job_from_mapping
from wattree.job.optimizers import WITH_MOMENTUM
from wattree.strategy import AXES
from wattree.strategy.described import describe_options

#: Strategies for each framework, and under `make soak`.
COUNT, SOAKED = 16, 200
#: Drawn at most for one that can be exported.
MOST_DRAWN: Final = 200 * SOAKED


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What random jobs of one framework are drawn from.

    Attributes:
        models: Names in the catalog.
        values: Key of a strategy → values.
        precisions, optimizers: Of the job.
        compiled: Of the job.
        file: Of the exported folder, which is imported.
        given: What it does not say, and the user adds.
        least_ranks: Fewer are left out where the file does not say how many there are.
    """

    models: tuple[str, ...]
    values: dict[str, tuple[Any, ...]]
    precisions: tuple[str, ...] = ("bf16",)
    optimizers: tuple[str, ...] = ("adamw",)
    compiled: tuple[bool, ...] = (True, False)
    file: str
    given: tuple[str, ...] = ()
    least_ranks: int = 1


DEGREES: Final[dict[str, tuple[Any, ...]]] = {
    "dp": (1, 2, 4, 8),
    "fsdp": (1, 1, 2, 8),
    "tp": (1, 1, 2, 8),
    "cp": (1, 1, 1, 2),
    "pp": (1, 1, 2, 4),
    "micro_batch": (1, 2),
}
#: What DeepSpeed has settings for.
ZERO: Final[dict[str, tuple[Any, ...]]] = {
    "recompute": ("none", "full"),
    "overlap_gradients": (None, None, True, False),
    "bucket": (None, None, "50 MB", {"gradients": "25 MiB", "parameters": "100 MiB"}),
    "offload": (
        *(None, None),
        {"optimizer": "host"},
        {"optimizer": "host", "parameters": "host"},
    ),
}
#: What Accelerate and the Trainer have besides, with one engine or another.
ENGINES: Final[dict[str, tuple[Any, ...]]] = {
    "sharding": ("none", "zero1", "zero2", "zero3", "zero3", "hybrid"),
    "context": ("gather", "ring", "ulysses"),
    "reshard_after_forward": (None, None, False),
    "overlap_gradients": (None, None, None, True, False),
    "bucket": (None, None, None, "25 MiB"),
    "pp": (1,),
}
#: What Megatron-LM and Megatron-Bridge say alike.
MEGATRON: Final[dict[str, tuple[Any, ...]]] = {
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
}
DRAWN: Final[dict[str, Drawn]] = {
    "deepspeed": Drawn(
        models=("llama-3.1-8b", "mixtral-8x7b"),
        values={
            **DEGREES,
            **ZERO,
            "ep": (1, 1, 1, 4),
            "sharding": ("none", "zero1", "zero2", "zero3"),
            "schedule": ("1f1b",),
            "context": ("ulysses",),
            "overlap_tensor": (None, None, True, False),
        },
        precisions=("bf16", "fp16", "fp32", "amp"),
        optimizers=("adamw", "adam", "lion", "sgd", "momentum", "rmsprop", "rmsprop_momentum"),
        file="ds_config.json",
        given=("model", "sequence_length"),
    ),
    "accelerate": Drawn(
        models=("llama-3.1-8b", "mixtral-8x7b"),
        values={**DEGREES, **ZERO, **ENGINES},
        precisions=("bf16", "fp16", "fp32", "fp8"),
        optimizers=("adamw", "adam", "sgd", "rmsprop", "adafactor"),
        file="launch.sh",
    ),
    "hf-trainer": Drawn(
        models=("llama-3.1-8b", "mixtral-8x7b"),
        values={**DEGREES, **ZERO, **ENGINES},
        precisions=("bf16", "fp16", "fp32"),
        optimizers=("adamw", "adamw8bit", *WITH_MOMENTUM, *WITH_MOMENTUM.values(), "lion"),
        file="launch.sh",
    ),
    "maxtext": Drawn(
        models=("llama-3.1-8b", "mixtral-8x7b", "qwen3-235b-a22b"),
        values={
            **DEGREES,
            "ep": (1, 1, 1, 4),
            "sharding": ("none", "zero1", "zero3", "zero3", "hybrid"),
            "recompute": (
                "none",
                "full",
                "selective_matmul",
                "selective_attention_matmul",
                "selective_qkv",
            ),
            "schedule": ("gpipe", "breadth-first"),
            "virtual_stages": (1, 2),
            "context": ("gather", "ring"),
            "context_order": ("zigzag", "contiguous"),
            "sequence_parallel": (True, False),
            "expert_over_tensor": (True, False),
        },
        precisions=("bf16", "fp8", "fp32"),
        optimizers=("adamw", "adam", "sgd"),
        file="maxtext.yml",
    ),
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
            "sequence_parallel": (True, True, False),
            "expert_over_tensor": (True, False),
            "overlap_tensor": (None, True, False),
            "overlap_optimizer": (False, True),
            "reshard_after_forward": (True, True, False),
            "offload": (None, None, {"optimizer": "host", "parameters": "host"}),
        },
        precisions=("bf16", "fp8", "mxfp8", "tf32"),
        optimizers=("adamw", "adam"),
        file="launch.sh",
    ),
    "megatron-lm": Drawn(
        models=("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "gpt3-175b", "llama-3.1-405b"),
        values=MEGATRON,
        precisions=("bf16", "fp8", "mxfp8", "nvfp4", "fp16"),
        optimizers=("adamw", "momentum"),
        compiled=(False,),
        file="launch.sh",
    ),
    "megatron-bridge": Drawn(
        models=(
            "llama-3.1-8b",
            "qwen3-30b-a3b",
            "deepseek-v3",
            "gpt3-175b",
            "llama-3.1-405b",
            "deepseek-v2-lite",
        ),
        values=MEGATRON,
        precisions=("bf16", "fp8", "mxfp8", "nvfp4", "fp16"),
        optimizers=("adamw", "momentum"),
        compiled=(False,),
        file="overrides.yaml",
        least_ranks=8,
    ),
}


def random_jobs(name: str, seed: int) -> Iterator[Job]:
    """Yield jobs, most of which no framework expresses and some of which no one can run."""
    drawn, choose = DRAWN[name], random.Random(seed)
    for _ in range(MOST_DRAWN):
        strategy = {key: choose.choice(values) for key, values in drawn.values.items()}
        if strategy.get("sharding") not in {"zero3", "hybrid"}:
            strategy.pop("reshard_after_forward", None)  # has no effect, and need not come back
        strategy |= _sound(strategy)
        ranks = math.prod(strategy.get(axis, 1) for axis in AXES)
        if ranks < drawn.least_ranks:
            continue
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
                    "compile": choose.choice(drawn.compiled),
                    "software": FRAMEWORKS[name].software[0],
                    "strategy": {k: v for k, v in strategy.items() if v is not None},
                    **place,
                },
                "job.yaml",
            )
        except WattreeError:
            continue


def _sound(strategy: dict[str, Any]) -> dict[str, Any]:
    """Return what most draws have to have otherwise: no framework has them, nor has Wattree."""
    found: dict[str, Any] = {}
    if strategy["pp"] == 1:
        found |= {"schedule": "1f1b", "virtual_stages": 1}
    elif strategy["schedule"] in ("zb-v", "dualpipev"):
        found |= {"virtual_stages": 2}
    if strategy["sharding"] == "hybrid":
        found |= {"fsdp": 2, "cp": 1, "ep": 1}
    if strategy["pp"] > 1 and "activations" in (strategy.get("offload") or {}):
        found |= {"offload": None}
    return found


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_an_exported_strategy_comes_back(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None], *, soaking: bool
) -> None:
    """A user who exports, edits a path and imports must not plan something else."""
    done, wanted, different = 0, SOAKED if soaking else COUNT, []
    for job in random_jobs(name, seed=19):
        try:
            concrete = concrete_job(job)
            files, _ = recipe_files(FRAMEWORKS[name], concrete)
        except WattreeError:
            continue
        if _has_longer_table(concrete):
            continue
        back = _imported(files, name, concrete, tmp_path)
        before, after = _facts(concrete), _facts(back)
        different += [(key, before[key], after[key]) for key in before if before[key] != after[key]]
        if (done := done + 1) == wanted:
            break
    record_property("exported", done)

    assert different[:1] == []
    assert done == wanted


def _imported(files: dict[str, str], name: str, concrete: ConcreteJob, folder: Path) -> ConcreteJob:
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    ranks, nodes = concrete.options.ranks, concrete.job.cluster.nodes
    found = import_recipe(
        folder / DRAWN[name].file,
        name,
        node="dgx-b200",
        nodes=nodes if ranks >= 8 else None,
        given=_given(name, concrete),
    )
    assert found.not_understood == ()
    return concrete_job(job_from_mapping(found.job, "imported"))


def _has_longer_table(concrete: ConcreteJob) -> bool:
    """Return whether learned positions grow with the sequence: it is another model then."""
    shape, length = concrete.shape, concrete.job.data.sequence_length
    return shape is not None and shape.positions == "learned" and length > shape.max_positions


def _sizes(shape: TransformerShape | None) -> dict[str, object]:
    """Return the numbers of a model, less its names and what no step depends on."""
    assert shape is not None
    aside = {"name", "architecture", "sources", "activation", "vocab", "unread_parameters"}
    if shape.positions != "learned":
        aside |= {"max_positions", "position_rows"}
    found = {key: value for key, value in asdict(shape).items() if key not in aside}
    if found["moe_layers"] == tuple(range(shape.layers)):
        found["moe_layers"] = None  # all of them, as without
    return found


def _given(name: str, concrete: ConcreteJob) -> Given:
    known = {
        "model": concrete.model_name,
        "sequence_length": concrete.job.data.sequence_length,
    }
    return Given(**{key: known[key] for key in DRAWN[name].given})


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
