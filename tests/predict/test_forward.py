"""Forward passes alone: what is left of a training step without backward and optimizer."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.lowering.block import compile_model
from wattree.lowering.program import CollectiveInstruction, CollectiveKind
from wattree.predict import setting_of
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

#: Strategies that make sense with and without training.
STRATEGIES: dict[str, dict[str, Any]] = {
    "replicas": {"dp": 8, "micro_batch": 2},
    "tensor": {"tp": 8, "micro_batch": 4},
    "pipeline": {"tp": 2, "pp": 4, "micro_batch": 1},
    "interleaved": {"tp": 2, "pp": 4, "micro_batch": 1, "virtual_stages": 2},
    "sharded": {"dp": 8, "micro_batch": 1, "sharding": "zero3"},
    "context": {"tp": 2, "cp": 4, "micro_batch": 1, "context": "ring"},
}
#: A dense transformer, a mixture, a vision network and a stack of linear layers.
MODELS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"sequence_length": 2048, "global_batch": 32},
    "mixtral-8x7b": {"sequence_length": 2048, "global_batch": 32},
    "resnet50": {"global_batch": 256},
    "bert-large": {"sequence_length": 512, "global_batch": 64},
}


def job(
    workload: str,
    strategy: dict[str, Any] | str,
    model: Any = "llama-3.1-8b",
    **keys: Any,
) -> Job:
    """Return a job on one node."""
    data = keys.pop("data", None) or MODELS["llama-3.1-8b"]
    return job_from_mapping(
        {
            "workload": workload,
            "model": model,
            "data": data,
            "cluster": {"node": "dgx-h100"},
            "strategy": strategy,
            **keys,
        }
    )


def test_a_forward_pass_takes_less_of_everything_than_a_training_step() -> None:
    """It is part of one: less time, energy and memory, nothing for gradients or an optimizer."""
    for name, strategy in STRATEGIES.items():
        trained = wattree.simulate(job("train", strategy)).result
        found = wattree.simulate(job("forward", strategy)).result
        assert found.step_time_s < trained.step_time_s, name
        assert found.energy_j.total < trained.energy_j.total, name
        assert found.memory.peak_bytes < trained.memory.peak_bytes, name
        assert found.memory.by_category["gradients"] == 0.0, name
        assert found.memory.by_category["optimizer"] == 0.0, name
        assert found.time_s.optimizer == 0.0, name
        assert found.time_s.recomputation == 0.0, name


def test_forward_flop_of_products_are_a_third_of_training_s() -> None:
    """Backward has two products for each of forward; attention and all else likewise."""
    for name, data in MODELS.items():
        strategy = {"dp": 8, "micro_batch": 1}
        trained = setting_of(job("train", strategy, name, data=data), load_calibration())
        found = setting_of(job("forward", strategy, name, data=data), load_calibration())
        # Images have no gradient, so the first layer of a vision network has one product less.
        least = 1 / 3 - 1e-9 if name == "resnet50" else 1 / 3 * (1 - 1e-9)
        assert least <= found.model_flop() / trained.model_flop() <= 1 / 3 * 1.02, name
        assert trained.model.parameters == found.model.parameters, name


def test_the_closed_form_agrees_with_the_executor_on_forward_passes() -> None:
    """Both take the same lowered step, so they differ as little as for training."""
    for name, strategy in STRATEGIES.items():
        found = wattree.estimate(job("forward", strategy))
        executed = wattree.simulate(job("forward", strategy)).result
        assert found.step_time_s == pytest.approx(executed.step_time_s, rel=0.03), name
        assert found.energy_j.total == pytest.approx(executed.energy_j.total, rel=0.06), name
        assert found.memory.peak_bytes == pytest.approx(executed.memory.peak_bytes, rel=0.02), name


def test_forward_passes_store_weights_as_wide_as_their_precision() -> None:
    """Nothing is updated, so families with fp32 parameters load 16 bits; `amp` says otherwise."""
    widths = {"bf16": 2, "fp16": 2, "amp": 4, "fp32": 4, "tf32": 4}
    for software in ("hf-trainer", "pytorch", "megatron-core"):
        for precision, width in widths.items():
            found = wattree.simulate(
                job("forward", {"dp": 8}, software=software, precision=precision)
            ).result
            stored = found.memory.by_category["parameters"]
            assert stored == width * found.parameters, (software, precision)


def test_phantom_layers_have_forward_passes_too() -> None:
    """The function that a strategy makes of its own is frozen like the job's."""
    stack = {"ffn": {"width": 8192, "depth": 4}}
    strategy = {"tp": 8, "dp": 1, "phantom": True, "ghosts": 16, "micro_batch": 64}
    data = {"global_batch": 64}
    found = wattree.simulate(job("forward", strategy, stack, data=data)).result
    trained = wattree.simulate(job("train", strategy, stack, data=data)).result

    assert found.parameters == trained.parameters
    assert found.memory.by_category["gradients"] == 0.0
    assert found.step_time_s < trained.step_time_s
    assert found.energy_j.total >= found.energy_j.static


def test_a_plan_of_forward_passes_tries_nothing_that_only_training_has() -> None:
    """ZeRO-1, recomputation and split backward passes would be the same strategy again."""
    found = wattree.plan(job("forward", "auto"), top=5)

    tried = [entry.options for entry in found.ranked]
    assert found.best.result.workload == "forward"
    assert {options.memory.sharding for options in tried} <= {"none", "zero3", "hybrid"}
    assert {options.memory.recompute for options in tried} == {"none"}


def test_what_only_training_reads_is_refused_all_at_once() -> None:
    """A strategy for gradients is not what was meant; the message says what to use instead."""
    strategy = {"dp": 8, "sharding": "zero2", "recompute": "full", "overlap_gradients": True}

    with pytest.raises(JobError) as refused:
        job("forward", strategy, data={**MODELS["llama-3.1-8b"], "prompt_length": 5})

    assert "strategy.sharding: found 'zero2' with workload: forward" in str(refused.value)
    assert "strategy.recompute: found with workload: forward" in str(refused.value)
    assert "strategy.overlap_gradients: found with workload: forward" in str(refused.value)
    assert "data.prompt_length: found with workload: forward" in str(refused.value)


def test_settings_of_training_without_effect_are_told() -> None:
    """An optimizer that no one runs is a warning: the job is sound."""
    found = job("forward", "ddp", optimizer="sgd", training={"steps": 5})

    assert [line.split(":")[0] for line in found.warnings] == ["optimizer", "training"]


def test_forward_passes_synchronize_no_statistics() -> None:
    """Batch norms use running ones, which every replica has."""
    asked, plain = (
        wattree.simulate(
            job(
                "forward",
                {"dp": 8, "micro_batch": 32, "sync_batch_norm": asked},
                model="resnet50",
                data={"global_batch": 256},
            )
        ).result
        for asked in (True, False)
    )

    assert asked.step_time_s == plain.step_time_s
    assert any("sync_batch_norm: false" in line for line in asked.assumed)


def test_only_training_predicts_further_tokens() -> None:
    """Engines load such modules for speculative decoding alone; no sentence advises them."""
    further = {"name": "deepseek-v3", "arguments": {"predictions": 1}}
    facts: dict[str, Any] = {"data": {"sequence_length": 4096, "global_batch": 256}}
    facts["cluster"] = {"node": "dgx-h100", "nodes": 32}
    plain, other = (
        setting_of(
            job_from_mapping({"workload": "forward", "model": model, "strategy": "auto", **facts}),
            load_calibration(),
        )
        for model in ("deepseek-v3", further)
    )

    assert other.model.parameters == plain.model.parameters
    assert not any("multi-token" in line for line in (*plain.job.assumed, *other.job.assumed))
    assert "model.arguments.predictions: has no effect" in "".join(other.warnings)
    assert not plain.warnings


def test_forward_passes_add_up_no_loss_over_ranks() -> None:
    """They have none; training on tensor ranks does."""
    strategy = StrategyOptions(tp=8)
    for workload in ("train", "forward"):
        setting = setting_of(job(workload=workload, strategy={"tp": 8}), load_calibration())
        tree = tree_of(strategy, setting.model)
        head = compile_model(setting.model, tree, frozenset({"tp"})).programs[-1]
        reduced = [
            each.kind for each in head.forward if isinstance(each, CollectiveInstruction)
        ].count(CollectiveKind.ALL_REDUCE)
        assert reduced == (workload == "train")


@pytest.mark.parametrize("workload", ["forward", "train"])
def test_an_operator_without_gradients_holds_what_it_reads(workload: str) -> None:
    """Nothing of it is saved, but it is there while its result is made: two of as many bytes."""
    batch, width = 65536, 1024
    stack = {"width": width, "depth": 4, "outputs": 1, "bias": False}
    model: dict[str, Any] = {"ffn": stack}
    if workload == "train":
        model["freeze"] = [f"layers.{layer}.*" for layer in range(3)]
    data = {"global_batch": batch}
    asked = job(workload, {"dp": 8}, model, data=data, precision="fp32")
    found = wattree.simulate(asked).result

    assert found.memory.by_category["activations"] >= 2 * batch / 8 * width * 4


def test_weights_of_4_bits_are_unpacked_for_their_own_product_alone() -> None:
    """A result that waits for a later reader, as attention beside an MLP does, waits without them.

    The largest product's weights in 16 bits are most of what a few tokens need.
    """
    lora = {"rank": 8, "targets": ["attention.qkv"], "base": "nf4"}
    model = {"name": "falcon-7b", "lora": lora}
    strategy = {"dp": 8, "micro_batch": 1}
    data = {"sequence_length": 16, "global_batch": 8}
    found = wattree.simulate(job("forward", strategy, model, data=data, software="pytorch")).result

    assert found.memory.by_category["activations"] <= 1.02 * 2 * 4544 * 4 * 4544
