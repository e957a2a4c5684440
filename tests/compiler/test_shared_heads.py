"""Fewer key-value heads than tensor ranks: each rank holds and computes a copy of one."""

from __future__ import annotations

import pytest

from tests.compiler.jobs import dense
from wattree import simulate
from wattree.graph import ModelGraph, Operator
from wattree.job import job_from_mapping
from wattree.lowering.changed import changed_model
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

#: What a model may do with its heads besides attending.
VARIANTS = [
    {},
    {"qk_norm": "head"},
    {"qkv_bias": True, "positions": "learned", "max_positions": 512},
]


def rows(operator: Operator) -> list[object]:
    """Return all that a rank computes and holds of an operator, but for names."""
    operands = [*operator.inputs, *operator.outputs]
    return [
        [(dim.name, round(dim.extent.coefficient, 6), dim.units) for dim in operator.dims],
        [(each.tensor, round(each.fraction, 9)) for each in operands],
        [(each.name, each.elements) for each in operator.parameters],
        operator.kv_heads,
    ]


def layer(model: ModelGraph) -> list[list[object]]:
    """Return the operators of the first layer."""
    name = next(each.block for each in model.instances if each.path == "layers.0")
    return [rows(operator) for operator in model.blocks[name].operators]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_layer_with_copies_is_one_with_as_many_heads(variant: dict[str, object]) -> None:
    """One, two or four heads over eight ranks, or two over four."""
    for heads, ranks in ((1, 8), (2, 8), (4, 8), (2, 4)):
        few = dense(heads=8, kv_heads=heads, **variant)
        options = StrategyOptions(tp=ranks)
        changed, _ = changed_model(few, tree_of(options, few), {"tp": ranks})

        assert layer(changed) == layer(dense(heads=8, kv_heads=ranks, **variant))
        assert len(changed.instances) == len(few.instances)


def test_enough_heads_are_left_alone() -> None:
    """The very same model comes back, also where nothing would divide."""
    for heads, ranks in ((8, 8), (8, 4), (3, 2), (2, 1)):
        model = dense(heads=24, hidden=96, kv_heads=heads)
        tree = tree_of(StrategyOptions(tp=ranks), model)

        assert changed_model(model, tree, {"tp": ranks})[0] is model


SHAPE = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "vocab": 32000}


def job(kv_heads: int, **more: object) -> object:
    """Return a step over eight ranks."""
    return job_from_mapping(
        {
            "model": {"transformer": {**SHAPE, "kv_heads": kv_heads}},
            "precision": "bf16",
            "cluster": {"node": "dgx-h100"},
            "strategy": {"tp": 8},
            **more,
        }
    )


@pytest.mark.parametrize(
    "more",
    [
        {"data": {"sequence_length": 1024, "global_batch": 4}},
        {
            "workload": "generate",
            "data": {"prompt_length": 512, "generate_length": 16, "global_batch": 4},
        },
    ],
    ids=["train", "generate"],
)
def test_a_rank_takes_as_long_and_holds_as_much(more: dict[str, object]) -> None:
    """Training, and the cache of generation; the caption alone differs, and a warning says why."""
    few, enough = simulate(job(2, **more)), simulate(job(8, **more))

    assert few.result.step_time_s == pytest.approx(enough.result.step_time_s, rel=1e-9)
    assert few.result.memory.by_category == pytest.approx(enough.result.memory.by_category)
    assert few.result.parameters < enough.result.parameters
