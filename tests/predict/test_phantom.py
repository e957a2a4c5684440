"""Phantom layers as people meet them: results say that the function is changed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.errors import StrategyError
from wattree.job import Job, job_from_mapping
from wattree.predict import predicted, setting_of, simulate
from wattree.report import show_result
from wattree.strategy import StrategyOptions

STACK = {"ffn": {"width": 4096, "depth": 4}}


def job(strategy: Any, model: Any = STACK, **changes: Any) -> Job:
    """Return a job on eight devices."""
    data: dict[str, Any] = {"global_batch": 256}
    if model is not STACK:
        data = {"global_batch": 16, "sequence_length": 512}
    return job_from_mapping(
        {
            "model": model,
            "data": data,
            "cluster": {"node": "dgx-a100"},
            "strategy": strategy,
            **changes,
        }
    )


PHANTOM = {"preset": "phantom", "tp": 8, "ghosts": 32}


def test_results_tell_that_the_function_is_changed() -> None:
    """In the figures, in JSON and in text, with the parameters against the model's."""
    found = simulate(job(PHANTOM))
    result = found.result

    weights = 4096 * (4096 // 8 + 8 * 32)
    assert result.parameters == 4 * (weights + 4096)
    assert result.dense_parameters == 4 * 4096 * 4097
    assert result.function == "changed"
    assert result.parameter_ratio == (weights + 4096) / (4096 * 4097)
    # Three products of its weights, but for the gradient that the samples do not need.
    first = 4096 * (512 + 32)
    assert result.model_flop_per_step == 2 * 256 * (3 * 4 * weights - first)
    written = result.as_json()
    assert written["function"] == "changed"
    assert written["parameter_ratio"] == result.parameter_ratio
    (warning,) = found.warnings
    assert warning.startswith("strategy.phantom: trains another function than ffn, with 18.8 % of")
    console = Console(record=True, width=100)
    show_result(result, console)
    assert "changed, 18.8 % of the model's parameters" in console.export_text()


def test_other_results_are_of_the_model_itself() -> None:
    """In the same keys."""
    found = simulate(job({"preset": "tensor", "tp": 8})).result.as_json()

    assert (found["function"], found["dense_parameters"], found["parameter_ratio"]) == (
        "exact",
        None,
        1.0,
    )


def test_a_stack_can_be_pasted_back() -> None:
    """Under the presets that say how its layers are split."""
    presets: tuple[dict[str, Any], ...] = (
        PHANTOM,
        {**PHANTOM, "variant": "shared", "tp": 4},
        {"preset": "tensor", "tp": 8},
        {"preset": "megatron", "tp": 4},
    )
    for strategy in presets:
        first = simulate(job(strategy))
        printed = {k: v for k, v in first.result.strategy.items() if k != "preset"}
        assert simulate(job(printed)).trace.graph.equal(first.trace.graph), strategy


UNEVEN = {"ffn": {"width": 4099, "depth": 4, "inputs": 1001, "outputs": 10}}
DECODER = {
    "transformer": {"layers": 4, "hidden": 1024, "heads": 8, "vocab": 32000, "ffn": 4099}
    | {"gated": False}
}


@pytest.mark.parametrize("model", [UNEVEN, DECODER], ids=["stack", "decoder"])
@pytest.mark.parametrize("variant", ["pair", "shared"])
def test_uneven_blocks_mean_the_same_in_closed_form(model: Any, variant: str) -> None:
    """As wide as the widest in both; results count the parameters that there are."""
    setting = setting_of(job("auto", model), load_calibration(None))
    batch = setting.job.data.global_batch
    options = StrategyOptions(
        tp=4, dp=2, phantom=True, ghosts=2, variant=variant, micro_batch=batch // 4
    )
    setting = replace(
        setting,
        pool_rates=tuple(replace(rates, step_overhead_s=0.0) for rates in setting.pool_rates),
    )
    guessed = estimate(setting, options, Degrees.of([options], batch))
    executed = predicted(setting, options)

    assert guessed.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.06)
    assert guessed.energy_j[0] == pytest.approx(executed.result.energy_j.total, rel=0.05)
    if model is UNEVEN:
        layers = itertools.pairwise([1001, 4099, 4099, 4099, 10])
        assert executed.result.parameters == sum(_parameters(*each, variant) for each in layers)


def _parameters(inputs: int, outputs: int, variant: str) -> int:
    """Return those of a layer over 4 ranks, of which the first have one feature more."""
    rows, columns = ([n // 4 + (rank < n % 4) for rank in range(4)] for n in (inputs, outputs))
    sources = 3 if variant == "pair" else 1
    own = sum(a * b + 2 * a + sources * 2 * b for a, b in zip(rows, columns, strict=True))
    return own + outputs


@pytest.mark.parametrize("model", [STACK, "gpt2"], ids=["stack", "gpt2"])
@pytest.mark.parametrize(
    "options",
    [
        StrategyOptions(tp=4, dp=2, phantom=True, ghosts=16),
        StrategyOptions(tp=4, dp=2, phantom=True, ghosts=16, variant="shared"),
        StrategyOptions(tp=4, dp=2, phantom=True, ghosts=16, regather=True, sharding="zero1"),
        StrategyOptions(tp=4, pp=2, phantom=True, ghosts=16, recompute="full"),
        StrategyOptions(tp=4, dp=2, phantom=True, ghosts=16, exchange="activations"),
        StrategyOptions(
            tp=4, dp=2, phantom=True, ghosts=16, exchange="activations", variant="shared"
        ),
        StrategyOptions(tp=4, dp=2, phantom=True, ghosts=0),
        StrategyOptions(tp=4, dp=2),
        StrategyOptions(tp=4, dp=2, tensor_pairs=True),
    ],
    ids=str,
)
def test_closed_form_and_play_mean_the_same(options: StrategyOptions, model: Any) -> None:
    """What is screened has to be what is simulated."""
    setting = setting_of(job("auto", model), load_calibration(None))
    batch = setting.job.data.global_batch
    options = replace(options, micro_batch=batch // options.replicas // (2 * options.pp))
    free = tuple(replace(rates, step_overhead_s=0.0) for rates in setting.pool_rates)
    setting = replace(setting, pool_rates=free)

    guessed = estimate(setting, options, Degrees.of([options], batch))
    executed = predicted(setting, options)

    assert guessed.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.06)
    assert guessed.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.08)
    assert guessed.energy_j[0] == pytest.approx(executed.result.energy_j.total, rel=0.065)


@pytest.mark.parametrize("more", [{}, {"variant": "shared"}, {"exchange": "activations"}], ids=str)
def test_heads_of_captured_models_mean_the_same_in_closed_form(more: dict[str, Any]) -> None:
    """Projections of attention whose features have several dims."""
    mapping = {
        "model": "deit-tiny",
        "data": {"global_batch": 96},
        "cluster": {"node": "dgx-a100"},
        "place": {"devices": "0-5"},
    }
    setting = setting_of(job_from_mapping(mapping), load_calibration(None))
    free = tuple(replace(rates, step_overhead_s=0.0) for rates in setting.pool_rates)
    setting = replace(setting, pool_rates=free)
    named = ("attn.*", "mlp.*")
    options = StrategyOptions(
        tp=3, dp=2, phantom=True, ghosts=8, phantom_layers=named, micro_batch=24, **more
    )
    guessed = estimate(setting, options, Degrees.of([options], 96))
    executed = predicted(setting, options)

    assert guessed.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.06)
    assert guessed.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.08)
    assert guessed.energy_j[0] == pytest.approx(executed.result.energy_j.total, rel=0.05)


def test_fewer_ghosts_are_never_slower_nor_larger() -> None:
    """Time, memory and energy grow with them."""
    results = [simulate(job({**PHANTOM, "ghosts": k})).result for k in (16, 64, 256, 512)]
    for figures in (
        [r.step_time_s for r in results],
        [r.memory.peak_bytes for r in results],
        [r.energy_j.total for r in results],
        [float(r.parameters) for r in results],
    ):
        assert figures == sorted(figures)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ghosts": 1000}, "layers.0.linear: 1000 ghosts are more than the 512 features"),
        ({"tp": 1, "dp": 8}, "strategy.tp: found 1 with phantom layers"),
        ({"phantom_layers": ["mlp.*"]}, "strategy.phantom_layers.mlp.*: matches no linear layer"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_job(changes: dict[str, Any], said: str) -> None:
    """One line, with the place."""
    with pytest.raises(StrategyError) as caught:
        simulate(job({**PHANTOM, **changes}))
    assert said in str(caught.value)


def test_feed_forward_parts_of_captured_models_are_replaced() -> None:
    """Plain layers alone; what adds to hidden states is whole, as in the catalog's own."""
    images = job_from_mapping(
        {
            "model": "deit-tiny",
            "data": {"global_batch": 64},
            "cluster": {"node": "4x-mi250x"},
            "strategy": {"preset": "phantom", "tp": 3, "ghosts": 8},
            "place": {"devices": "0-2"},
        }
    )
    result = simulate(images).result
    tree = result.strategy["tree"]

    assert [path for path, node in tree.items() if "phantom" in node] == [
        "blocks.*.mlp.0",
        "blocks.*.mlp.2",
    ]
    assert tree["blocks.*.add_2"] == {"compute": {"channel": []}}
    assert 0.5 < result.parameter_ratio < 0.7


def test_layers_of_captured_models_are_named_as_their_modules() -> None:
    """By the name of a linear layer, in full, or of what stands in each block."""
    images = {
        "model": "deit-tiny",
        "data": {"global_batch": 64},
        "cluster": {"node": "4x-mi250x"},
        "place": {"devices": "0-2"},
    }

    def chosen(patterns: list[str]) -> list[str]:
        strategy = {"preset": "phantom", "tp": 3, "ghosts": 8, "phantom_layers": patterns}
        result = simulate(job_from_mapping({**images, "strategy": strategy})).result
        return [path for path, node in result.strategy["tree"].items() if "phantom" in node]

    assert chosen(["mlp.*"]) == ["blocks.*.mlp.0", "blocks.*.mlp.2"]
    assert chosen(["mlp.0"]) == ["blocks.*.mlp.0"]  # the end of a name, as train has it
    assert chosen(["blocks.3.mlp.0"]) == ["blocks.3.mlp.0"]
    with pytest.raises(StrategyError, match=r"it has .*blocks\.\*\.mlp\.0"):
        chosen(["blocks.99.mlp.0"])


def test_adapters_beside_phantom_layers_are_refused() -> None:
    """Frozen weights would be those of a function that no one trained."""
    adapted = {"name": "gpt2", "lora": {"rank": 4, "targets": ["mlp.up"]}}
    with pytest.raises(StrategyError, match=r"layers\.0\.mlp\.up: is frozen"):
        simulate(job({**PHANTOM, "tp": 4, "dp": 2, "ghosts": 4}, adapted))
