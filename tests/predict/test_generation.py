"""Generation with a KV cache: counts by closed forms, laws of its costs, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import wattree
from wattree.accounts.energy_use import standing_w
from wattree.accounts.interval import deviation
from wattree.cost import load_calibration
from wattree.errors import JobError
from wattree.job import Job, job_from_mapping
from wattree.lowering.block import compile_model
from wattree.lowering.program import CollectiveInstruction, CollectiveKind
from wattree.lowering.setting import stated_setting
from wattree.lowering.workload import GenerationPhase
from wattree.predict.generation import decode_lengths
from wattree.strategy import StrategyOptions
from wattree.strategy.presets import tree_of

#: Model → keys and values of one token, by hand from its configuration. [values]
TOKEN_VALUES = {
    "llama-2-7b": 32 * 2 * 32 * 128,  # multi-head
    "llama-3.1-8b": 32 * 2 * 8 * 128,  # 8 heads of keys and values
    "gemma-2b": 18 * 2 * 1 * 256,  # a single one
    "deepseek-v2-lite": 27 * (512 + 64),  # latent vectors and one rotated key
}


def job(model: Any = "llama-3.1-8b", **keys: Any) -> Job:
    """Return a job that generates on one node."""
    prompt, generated, batch = (
        keys.pop(name, default)
        for name, default in (("prompt", 512), ("generated", 64), ("batch", 16))
    )
    return job_from_mapping(
        {
            "workload": "generate",
            "model": model,
            "data": {
                "prompt_length": prompt,
                "generate_length": generated,
                "global_batch": batch,
            },
            "cluster": {"node": "dgx-h100"},
            "strategy": {"tp": 8, "dp": 1, "micro_batch": batch},
            **keys,
        }
    )


def alone(model: Any, **keys: Any) -> Job:
    """Return a job on one device."""
    batch = keys.get("batch", 16)
    strategy = {"dp": 1, "micro_batch": batch}
    return job(model, place={"devices": "0"}, strategy=strategy, **keys)


def cache_bytes(found: Job) -> float:
    """Return the KV cache of the fullest device. [B]"""
    use = wattree.simulate(found).result.generation
    assert use is not None
    assert use.kv_cache_bytes is not None
    return use.kv_cache_bytes


def test_the_cache_has_the_bytes_of_its_closed_form() -> None:
    """Two bytes for each value of each token of each sequence, however heads share them."""
    for model, values in TOKEN_VALUES.items():
        expected = 2.0 * values * (512 + 64) * 16
        assert cache_bytes(alone(model)) == pytest.approx(expected, rel=1e-12), model


def test_ranks_share_heads_of_the_cache_but_not_latent_vectors() -> None:
    """Tensor ranks have their heads' keys; every head reads the same latent vectors."""
    shared = cache_bytes(job("llama-3.1-8b"))
    latent = cache_bytes(job("deepseek-v2-lite"))

    assert shared == pytest.approx(2.0 * TOKEN_VALUES["llama-3.1-8b"] / 8 * 576 * 16)
    assert latent == pytest.approx(2.0 * TOKEN_VALUES["deepseek-v2-lite"] * 576 * 16)


def test_replicas_and_stages_have_the_cache_of_their_sequences_and_layers() -> None:
    """Micro-batches wait for each other, so a stage holds the cache of all of them."""
    whole = 2.0 * TOKEN_VALUES["llama-3.1-8b"] * 576 * 16
    strategies: list[dict[str, Any]] = [
        {"dp": 8, "micro_batch": 2},
        {"dp": 2, "pp": 4, "micro_batch": 2},
        {"dp": 2, "tp": 2, "pp": 2, "micro_batch": 1},
    ]
    for strategy in strategies:
        found = cache_bytes(job(strategy=strategy))
        assert found == pytest.approx(whole / 8), strategy


def test_a_sliding_window_bounds_the_cache_of_its_layers() -> None:
    """Gemma 2 has a window of 4,096 tokens in every other layer."""
    per_layer = 2.0 * 2 * 8 * 256 * 4  # values of a token in bytes, of 4 sequences
    found = cache_bytes(alone("gemma-2-9b", prompt=8000, generated=192, batch=4))

    assert found == pytest.approx(per_layer * 21 * (8192 + 4096))


def decode_step_s(found: Job, cache_length: float) -> float:
    """Return the time of a step at one length of the cache, by the closed form. [s]"""
    from wattree.predict.step_estimate import _estimated

    phase = GenerationPhase(cache_length=cache_length)
    return _estimated(stated_setting(found, load_calibration(), phase=phase)).step_time_s


def test_a_decode_step_takes_no_less_with_a_longer_cache_or_more_sequences() -> None:
    """Both add work and take none away; between kinks time is affine in the cache's length."""
    for model in ("llama-2-7b", "llama-3.1-8b", "deepseek-v2-lite", "mixtral-8x7b"):
        lengths = [1, 100, 500, 900, 1300]
        times = [decode_step_s(job(model), length) for length in lengths]
        assert times == sorted(times), model
        assert times[4] - times[3] == pytest.approx(times[3] - times[2], rel=1e-6), model
        batches = [decode_step_s(job(model, batch=n), 500) for n in (1, 4, 16, 64, 256)]
        assert batches == sorted(batches), model


def test_a_cached_position_adds_the_flop_of_its_scores() -> None:
    """Two products of each query head; latent attention has them on compressed vectors."""
    widths = {"llama-3.1-8b": 32 * 32 * (128 + 128), "deepseek-v2-lite": 27 * 16 * (576 + 512)}
    for model, width in widths.items():
        flop = [
            stated_setting(
                job(model), load_calibration(), phase=GenerationPhase(cache_length=length)
            ).model_flop()
            for length in (700, 701)
        ]
        assert flop[1] - flop[0] == pytest.approx(2 * 16 * width, rel=1e-6), model


def test_tensor_ranks_sum_a_token_once_for_its_experts_together() -> None:
    """Engines add a token's copies and shared experts before they all-reduce (vLLM, SGLang)."""
    strategy = {"tp": 4, "ep": 2, "micro_batch": 16}
    for model in ("deepseek-v2-lite", "qwen1.5-moe-a2.7b", "gpt-oss-20b"):
        found = stated_setting(
            job(model, strategy=strategy), load_calibration(), phase=GenerationPhase(cache_length=9)
        )
        options = found.job.strategy
        assert isinstance(options, StrategyOptions)
        tree = tree_of(options, found.model)
        programs = compile_model(found.model, tree, frozenset({"tp", "ep"})).programs
        layer = next(each for each in programs if "moe" in each.block)
        summed = [
            each.size
            for each in layer.forward
            if isinstance(each, CollectiveInstruction) and each.kind is CollectiveKind.ALL_REDUCE
        ]
        assert len(summed) == 2, model
        assert summed[0] == summed[1], model


def test_a_single_sequence_waits_for_weights_and_cache() -> None:
    """No step is shorter than reading them once at the datasheet's bandwidth."""
    found = wattree.simulate(alone("llama-2-7b", batch=1)).result
    use = found.generation
    assert use is not None
    assert use.time_per_output_token_s is not None

    read = 2.0 * (6.74e9 - 32000 * 4096) + 2.0 * TOKEN_VALUES["llama-2-7b"] * 544
    bound_s = read / 3.35e12

    assert bound_s < use.time_per_output_token_s < 2 * bound_s


def test_the_closed_form_agrees_with_the_executor_on_generation() -> None:
    """Both take the same lowered steps, whatever shares the work."""
    strategies: list[tuple[str, dict[str, Any]]] = [
        ("llama-3.1-8b", {"dp": 4, "tp": 2, "micro_batch": 4}),
        ("llama-3.1-8b", {"tp": 2, "pp": 4, "micro_batch": 4}),
        ("llama-3.1-8b", {"tp": 1, "pp": 8, "micro_batch": 16}),
        ("mixtral-8x7b", {"ep": 8, "micro_batch": 2}),
        ("mixtral-8x7b", {"tp": 8, "micro_batch": 16}),
        ("deepseek-v2-lite", {"tp": 8, "micro_batch": 16}),
    ]
    for model, strategy in strategies:
        given = job(model, strategy=strategy)
        found, executed = wattree.estimate(given), wattree.simulate(given).result
        assert found.generation is not None
        assert executed.generation is not None
        assert found.step_time_s == pytest.approx(executed.step_time_s, rel=0.03), strategy
        assert found.energy_j.total == pytest.approx(executed.energy_j.total, rel=0.04), strategy
        assert found.memory.peak_bytes == pytest.approx(executed.memory.peak_bytes, rel=0.02)
        for phase in ("prefill", "decode"):
            mine, theirs = getattr(found.generation, phase), getattr(executed.generation, phase)
            assert mine.energy_j == pytest.approx(theirs.energy_j, rel=0.04), strategy
            assert mine.mfu == pytest.approx(theirs.mfu, rel=0.03), strategy


def test_gathers_of_sharded_parameters_are_most_of_a_decode_step() -> None:
    """ZeRO-3 brings all weights to each rank for every token; the closed form is 6 % off there."""
    given = job(strategy={"dp": 8, "micro_batch": 2, "sharding": "zero3"})
    whole = wattree.estimate(job(strategy={"dp": 8, "micro_batch": 2}))
    found, executed = wattree.estimate(given), wattree.simulate(given).result

    assert found.step_time_s == pytest.approx(executed.step_time_s, rel=0.06)
    assert found.step_time_s > 3 * whole.step_time_s
    assert found.memory.peak_bytes < whole.memory.peak_bytes


def test_stages_gather_their_first_blocks_while_they_wait_for_a_token() -> None:
    """A token passes deep pipelines without these gathers, in both forms."""
    for software in ("generic", "megatron-core"):  # which hides gathers, and which does not
        for count in (1, 3):
            given = job(
                "llama-3.1-70b",
                batch=8 * count,
                generated=4,
                software=software,
                cluster={"node": "dgx-h100", "nodes": 4},
                strategy={"pp": 16, "dp": 2, "micro_batch": 4, "sharding": "zero3"},
            )
            found, executed = wattree.estimate(given), wattree.simulate(given).result
            assert found.step_time_s == pytest.approx(executed.step_time_s, rel=0.04), software


def test_energies_and_times_of_a_generation_add_up() -> None:
    """The result is that of all steps: parts sum to it, and rest is drawn all the time."""
    for strategy in ({"tp": 8, "micro_batch": 16}, {"tp": 2, "pp": 4, "micro_batch": 4}):
        given = job(strategy=strategy)
        found = wattree.simulate(given).result
        use, energy = found.generation, found.energy_j
        assert use is not None
        assert use.decode is not None
        assert use.prefill.time_s + use.decode.time_s == pytest.approx(found.step_time_s)
        assert use.prefill.energy_j + use.decode.energy_j == pytest.approx(energy.total)
        assert sum(energy.by_component.values()) == pytest.approx(energy.total)
        assert sum(energy.by_stage.values()) == pytest.approx(energy.total)
        assert sum(entry.energy_j for entry in energy.ledger) == pytest.approx(energy.total)
        assert sum(vars_of(found).values()) == pytest.approx(found.step_time_s)
        static_w = sum(standing_w(given.cluster, given.cluster.pool_nodes(found.ranks)))
        assert energy.total >= static_w * found.step_time_s
        assert use.output_tokens_per_s * found.step_time_s == pytest.approx(16 * 64)


def test_the_interval_of_a_generation_is_that_of_its_steps() -> None:
    """Steps rest on the same constants, so their errors do not cancel; rates are its inverse."""
    for strategy in ({"tp": 8, "micro_batch": 16}, {"tp": 2, "pp": 4, "micro_batch": 4}):
        given = job(strategy=strategy)
        found, rough = wattree.simulate(given).result, wattree.estimate(given)
        low, high = found.interval["step_time_s"]
        assert low < found.step_time_s < high
        assert found.interval["tokens_per_s"] == pytest.approx((16 * 64 / high, 16 * 64 / low))
        for name, value in (
            ("energy_j", found.energy_j.total),
            ("average_power_w", found.average_power_w),
            ("memory.peak_bytes", found.memory.peak_bytes),
            ("cost_usd", found.cost_usd),
        ):
            least, most = found.interval[name]
            assert value is not None
            assert least < value < most, name
        spread = math.log(high / found.step_time_s)
        parts = found.interval_parts
        assert parts["residual"].share == pytest.approx(1.0)
        assert sum(part.share for part in parts.values()) == pytest.approx(2.0)
        assert spread == pytest.approx(1.2816 * deviation(parts), rel=0.2)
        assert math.log(rough.interval["step_time_s"][1] / rough.step_time_s) > spread


def vars_of(result: wattree.Result) -> dict[str, float]:
    """Return the parts of a result's time. [s]"""
    from dataclasses import asdict

    return asdict(result.time_s)


def test_a_pipeline_that_never_drains_is_as_fast_as_its_work() -> None:
    """With as many micro-batches as stages, a step takes what they compute, not the filling too."""
    full = wattree.simulate(job(strategy={"pp": 8, "tp": 1, "micro_batch": 2})).result.generation
    one = wattree.simulate(job(strategy={"pp": 8, "tp": 1, "micro_batch": 16})).result.generation
    assert full is not None
    assert one is not None
    assert full.time_per_output_token_s is not None
    assert one.time_per_output_token_s is not None

    # Weights are most of a step, so eight micro-batches in turn take about as long as one that
    # passes eight stages, and less than the eight and the seven more of a pipeline that drains.
    assert full.time_per_output_token_s < 1.25 * one.time_per_output_token_s


def test_steps_are_counted_once_whatever_the_windows() -> None:
    """Weights of the predicted lengths add up to the tokens after the first."""
    for windows in ([], [600], [520, 560], [4096], [513]):
        for generated in (1, 2, 3, 64, 200):
            found = decode_lengths(job(generated=generated), windows)
            assert sum(each.count for each in found) == pytest.approx(generated - 1)
            mean = sum(each.count * each.cache_length for each in found)
            expected = sum(range(513, 512 + generated))
            assert mean == pytest.approx(expected), (windows, generated)


def test_one_token_is_the_prompts_alone() -> None:
    """The pass over the prompts makes the first token; there is no decode step."""
    found = wattree.simulate(job(generated=1)).result.generation

    assert found is not None
    assert found.decode is None
    assert found.time_per_output_token_s is None


def test_what_cannot_generate_is_refused_with_what_to_do() -> None:
    """Of each kind of model and length that makes no sense, the message names the remedy."""
    refused: list[tuple[dict[str, Any], str]] = [
        ({"model": "bert-large"}, "attends to later positions"),
        ({"model": "t5-large"}, "has an encoder and a decoder"),
        ({"model": "resnet50"}, "what a KV cache would hold is not known"),
        ({"model": "llama-2-7b", "prompt": 4000, "generated": 100}, "use at most 96"),
        ({"model": "gpt2", "generated": 2000}, "gpt2 has 1,024 positions; use at most 512"),
    ]
    for keys, words in refused:
        strategy = {"dp": 1, "micro_batch": 16}
        with pytest.raises(JobError, match=words):
            wattree.simulate(job(**keys, place={"devices": "0"}, strategy=strategy))


def test_too_many_tokens_are_refused_together_with_what_the_strategy_cannot() -> None:
    """Positions and heads, or positions and samples: one message."""
    cases = {
        (4, 8): ["strategy: layers.0.attention.out", "strategy: layers.0.attention.qkv"],
        (3, 4): ["data.global_batch: 3 samples cannot be split"],
    }
    for (batch, tp), others in cases.items():
        with pytest.raises(JobError) as refused:
            wattree.simulate(
                job("gpt2", prompt=1000, generated=200, batch=batch, strategy={"tp": tp})
            )
        first, *rest = refused.value.problems

        assert "found 200 tokens after a prompt of 1,000" in first
        assert len(rest) == len(others)
        assert all(map(str.startswith, rest, others))


def test_lengths_that_make_no_sense_are_refused_all_at_once() -> None:
    """A missing length, one that is not positive, and one of another workload."""
    mapping = {
        "workload": "generate",
        "model": "llama-3.1-8b",
        "data": {"sequence_length": 8, "global_batch": 8},
        "cluster": {"node": "dgx-h100"},
        "strategy": {"dp": 4, "cp": 2, "sequence_parallel": False, "virtual_stages": 1},
    }
    with pytest.raises(JobError) as refused:
        job_from_mapping(mapping)
    for place in ("data.prompt_length: is missing", "data.generate_length: is missing"):
        assert place in str(refused.value)
    assert "data.sequence_length: found with workload: generate" in str(refused.value)
    assert "strategy.cp: found with workload: generate" in str(refused.value)
    for key in ("prompt_length", "generate_length"):
        data = {"prompt_length": 8, "generate_length": 8, "global_batch": 8, key: 0}
        with pytest.raises(JobError, match=f"data.{key}: found 0, expected a whole number"):
            job_from_mapping({**mapping, "data": data, "strategy": "ddp"})


def test_what_needs_a_single_step_refuses_generation() -> None:
    """It would take the pass over the prompts for all of it by mistake."""
    with pytest.raises(JobError, match="generate, which has no single step"):
        stated_setting(job(), load_calibration())


def test_what_does_not_fit_is_told_with_what_would_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Changes that keep less for backward passes would not; the exit code is that of training."""
    from wattree.cli.main import run

    path = tmp_path / "job.yaml"
    path.write_text(
        "workload: generate\nmodel: llama-3.1-70b\n"
        "data: {prompt_length: 64, generate_length: 2, global_batch: 4}\n"
        "cluster: {node: dgx-h100}\nplace: {devices: '0'}\nstrategy: {dp: 1, micro_batch: 4}\n",
        encoding="utf-8",
    )
    code = run(["simulate", str(path)])

    assert code == 3
    assert "try: more tensor ranks or stages, fewer sequences" in capsys.readouterr().out


def test_all_sequences_pass_together_unless_the_job_says_otherwise() -> None:
    """Engines take one token of each; one after the other would read all weights for each."""
    for strategy, expected in (
        ({"tp": 8}, 16),
        ({"tp": 4, "dp": 2}, 8),
        ({"tp": 4, "pp": 2}, 8),
        ({"tp": 8, "micro_batch": 2}, 2),
    ):
        found = job(strategy=strategy).strategy
        assert not isinstance(found, str)
        assert found.pipeline.micro_batch == expected, strategy  # type: ignore[union-attr]
