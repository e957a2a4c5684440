"""The same strategy, by preset, as a tree in Python and as a tree in a job file: one graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.compiler.jobs import Job, dense, mixture
from wattree.graph import ModelGraph
from wattree.job import load_job
from wattree.lowering.model import model_of
from wattree.strategy import (
    ActivationStore,
    GatheredStore,
    MemoryChoice,
    Mesh,
    PhantomLayers,
    Schedule,
    Strategy,
    StrategyOptions,
    StrategyTree,
    TreeNode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Options of the presets, and the same by hand as a job file would have it."""

    options: StrategyOptions
    mesh: dict[str, int]
    tree: dict[str, Any]
    micro_batches: int
    schedule: dict[str, Any] | None = None
    model: str = "dense"


REPLICAS = ["dp", "fsdp", "ep"]
#: Megatron's column and row products, and its two vocabulary tables.
COLUMN_AND_ROW = {
    "layers.*.attention.qkv": {"compute": {"out": "tp"}},
    "layers.*.attention.out": {"compute": {"in": "tp"}},
    "layers.*.mlp.up": {"compute": {"out": "tp"}},
    "layers.*.mlp.down": {"compute": {"in": "tp"}},
    "embedding.embedding.tokens": {"compute": {"vocab": "tp"}},
    "head.logits": {"compute": {"vocab": "tp"}},
}
BY_POSITION = {"compute": {"seq": ["tp"]}}

EVERYTHING_OVER_FSDP = {
    item: {"shard": "fsdp"} for item in ("optimizer", "gradients", "parameters")
}

PAIRS = {
    "ddp": Pair(
        options=StrategyOptions(dp=8),
        mesh={"dp": 8},
        tree={"": {"compute": {"batch": "dp"}}},
        micro_batches=2,
    ),
    "zero1": Pair(
        options=StrategyOptions(dp=8, sharding="zero1"),
        mesh={"dp": 8},
        tree={"": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}}},
        micro_batches=2,
    ),
    "zero2": Pair(
        options=StrategyOptions(dp=8, sharding="zero2"),
        mesh={"dp": 8},
        tree={
            "": {
                "compute": {"batch": "dp"},
                "memory": {"optimizer": {"shard": "dp"}, "gradients": {"shard": ["dp"]}},
            }
        },
        micro_batches=2,
    ),
    "fsdp": Pair(
        options=StrategyOptions(fsdp=8, sharding="zero3"),
        mesh={"fsdp": 8},
        tree={
            "": {
                "compute": {"batch": "fsdp"},
                "memory": EVERYTHING_OVER_FSDP,
            }
        },
        micro_batches=2,
    ),
    "hybrid": Pair(
        options=StrategyOptions(dp=2, fsdp=4, sharding="hybrid"),
        mesh={"dp": 2, "fsdp": 4},
        tree={
            "": {
                "compute": {"batch": ["dp", "fsdp"]},
                "memory": EVERYTHING_OVER_FSDP,
            }
        },
        micro_batches=2,
    ),
    "tensor": Pair(
        options=StrategyOptions(dp=2, tp=4),
        mesh={"dp": 2, "tp": 4},
        tree={"": {"compute": {"batch": "dp"}}, **COLUMN_AND_ROW},
        micro_batches=8,
    ),
    "megatron": Pair(
        options=StrategyOptions(dp=2, tp=4, sharding="zero1", sequence_parallel=True),
        mesh={"dp": 2, "tp": 4},
        tree={
            "": {"compute": {"batch": "dp"}, "memory": {"optimizer": {"shard": "dp"}}},
            **COLUMN_AND_ROW,
            "layers.*.*norm*": BY_POSITION,
            "layers.*.*.residual": BY_POSITION,
            "head.final_norm": BY_POSITION,
        },
        micro_batches=8,
    ),
    "phantom": Pair(
        options=StrategyOptions(dp=2, tp=4, phantom=True, ghosts=4, variant="shared"),
        mesh={"dp": 2, "tp": 4},
        tree={
            "": {"compute": {"batch": "dp"}},
            **{path: node for path, node in COLUMN_AND_ROW.items() if "mlp" not in path},
            "layers.*.mlp.*": {"phantom": {"ghosts": 4, "variant": "shared"}},
            "layers.*.*.residual": {"compute": {"hidden": []}},
        },
        micro_batches=8,
    ),
    "kept ghosts": Pair(
        options=StrategyOptions(dp=2, tp=4, phantom=True, ghosts=4),
        mesh={"dp": 2, "tp": 4},
        tree={
            "": {"compute": {"batch": "dp"}},
            **{path: node for path, node in COLUMN_AND_ROW.items() if "mlp" not in path},
            "layers.*.mlp": {
                "phantom": {"ghosts": 4, "axis": "tp"},
                "memory": {"gathered": "keep"},
            },
            "layers.*.*.residual": {"compute": {"hidden": []}},
        },
        micro_batches=8,
    ),
    "context": Pair(
        options=StrategyOptions(dp=2, cp=4),
        mesh={"dp": 2, "cp": 4},
        tree={"": {"compute": {"batch": "dp", "seq": "cp"}}},
        micro_batches=8,
    ),
    "recomputed pipeline": Pair(
        options=StrategyOptions(dp=2, pp=4, recompute="full"),
        mesh={"pp": 4, "dp": 2},
        tree={
            "": {"compute": {"batch": "dp"}},
            "layers.*": {"memory": {"activations": "recompute"}},
        },
        micro_batches=8,
    ),
    "interleaved": Pair(
        options=StrategyOptions(dp=4, pp=2, virtual_stages=2, recompute="selective"),
        mesh={"pp": 2, "dp": 4},
        tree={
            "": {"compute": {"batch": "dp"}},
            "layers.*.attention.core": {"memory": {"activations": "recompute"}},
        },
        micro_batches=4,
        schedule={"name": "interleaved", "virtual_stages": 2},
    ),
    "experts": Pair(
        options=StrategyOptions(dp=2, ep=4),
        mesh={"dp": 2, "ep": 4},
        tree={
            "": {"compute": {"batch": ["dp", "ep"]}},
            "layers.*.moe.experts": {"compute": {"batch": "dp", "expert": "ep"}},
        },
        micro_batches=2,
        model="mixture",
    ),
}

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "dense": {
        "layers": 4,
        "hidden": 32,
        "heads": 8,
        "vocab": 256,
        "ffn": 128,
        "norm": "layer",
        "positions": "rotary",
    },
    "mixture": {
        "layers": 4,
        "hidden": 32,
        "heads": 8,
        "vocab": 256,
        "ffn": 128,
        "norm": "rms",
        "positions": "rotary",
        "gated": True,
        "experts": 8,
        "top_k": 2,
    },
}


def model_named(name: str) -> ModelGraph:
    """Return the model of a pair."""
    return dense(4) if name == "dense" else mixture(4)


def axes(value: str | list[str]) -> tuple[str, ...]:
    """Return axes as a job file may write them."""
    return (value,) if isinstance(value, str) else tuple(value)


def tree_node(written: dict[str, Any]) -> TreeNode:
    """Return a node from its plain form."""
    memory = dict(written.get("memory", {}))
    activations, gathered = memory.pop("activations", None), memory.pop("gathered", None)
    phantom = written.get("phantom")
    return TreeNode(
        compute={dim: axes(value) for dim, value in written.get("compute", {}).items()},
        memory=MemoryChoice(
            activations=None if activations is None else ActivationStore(activations),
            gathered=None if gathered is None else GatheredStore(gathered),
            **{item: axes(value["shard"]) for item, value in memory.items()},
        ),
        phantom=None if phantom is None else PhantomLayers(**phantom),
    )


@pytest.mark.parametrize("name", PAIRS)
def test_a_tree_by_hand_compiles_to_the_graph_of_its_preset(name: str) -> None:
    """Nothing in the compiler knows presets: only what the tree says counts."""
    pair = PAIRS[name]
    preset = Job.of(model_named(pair.model), pair.options)
    by_hand = Strategy(
        mesh=Mesh(axes=tuple(pair.mesh.items())),
        schedule=Schedule(**{"micro_batches": pair.micro_batches, **(pair.schedule or {})}),
        tree=StrategyTree(nodes={path: tree_node(node) for path, node in pair.tree.items()}),
    )

    graph = replace(preset, strategy=by_hand).compiled().graph

    assert graph.equal(preset.compiled().graph)


@pytest.mark.parametrize("name", PAIRS)
def test_a_tree_in_a_job_file_compiles_to_the_graph_of_its_preset(
    name: str, tmp_path: Path
) -> None:
    """The loader adds nothing and loses nothing."""
    pair = PAIRS[name]
    common = {
        "model": {"transformer": TRANSFORMERS[pair.model]},
        "data": {"sequence_length": 64, "global_batch": 16},
        "cluster": {"node": "dgx-h100", "nodes": 1},
    }
    schedule = {"name": "1f1b", "micro_batches": pair.micro_batches, **(pair.schedule or {})}
    by_hand = {"mesh": pair.mesh, "schedule": schedule, "tree": pair.tree}
    changed = pair.options.chosen()

    graphs = [
        graph_of_file(tmp_path / f"{index}.yaml", {**common, "strategy": strategy})
        for index, strategy in enumerate((by_hand, changed))
    ]

    assert graphs[0].equal(graphs[1])


def graph_of_file(path: Path, content: dict[str, Any]) -> Any:
    """Write a job file, load it and compile the job."""
    text = StringIO()
    YAML(typ="safe").dump(content, text)
    path.write_text(text.getvalue(), encoding="utf-8")
    loaded = load_job(path)
    model = model_of(loaded)
    if isinstance(loaded.strategy, StrategyOptions):
        job = Job.of(model, loaded.strategy, cluster=loaded.cluster)
    else:
        assert isinstance(loaded.strategy, Strategy)
        job = Job(model=model, strategy=loaded.strategy, cluster=loaded.cluster)
    return job.compiled().graph


def test_another_strategy_compiles_to_another_graph() -> None:
    """The comparison above would notice a difference."""
    first, second = PAIRS["zero1"].options, PAIRS["zero2"].options

    graphs = [Job.of(dense(4), options).compiled().graph for options in (first, second)]

    assert not graphs[0].equal(graphs[1])
