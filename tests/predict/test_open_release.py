"""What a job leaves open with its software's release: kernels of attention, compilers."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.cost.attention_rates import older_attention
from wattree.predict import Prediction


def predicted(software: str, **changes: Any) -> Prediction:
    """Return the prediction of eight H100s that train on long samples."""
    return wattree.simulate(
        wattree.job_from_mapping(
            {
                "model": "llama-3.2-1b",
                "data": {"sequence_length": 16384, "global_batch": 8},
                "cluster": {"node": "dgx-h100"},
                "strategy": {"dp": 8, "micro_batch": 1},
                "software": software,
            }
            | changes
        )
    )


@pytest.mark.parametrize("software", ["torchtitan", "llm-foundry"])
def test_a_step_of_any_release_is_between_those_of_its_kernels(software: str) -> None:
    """Who names no release may run either; the interval is wider by what they differ."""
    older = predicted(software, traits={"attention_kernels": older_attention(software)[0]})
    newest = predicted(software, traits={"older_attention": 0.0})
    left, dated = predicted(software), predicted(software, released=2026)
    assert any(line.startswith("older_attention") for line in left.result.assumed)
    assert not any("older_attention" in line for line in dated.result.assumed)
    said = [
        any("in chunks, as in releases since 2026-09" in line for line in each.result.assumed)
        for each in (left, dated)
    ]
    assert said == [software == "torchtitan", False]

    faster_s, slower_s = sorted(each.result.step_time_s for each in (newest, older))
    assert faster_s < left.result.step_time_s < slower_s
    parts = [each.result.interval_parts["attention"].spread for each in (newest, left)]
    assert parts[0] < parts[1]


@pytest.mark.parametrize("node", ["dgx-a100", "8x-t4", "8x-mi300x"])
def test_a_release_is_open_only_where_its_kernels_are_slower(node: str) -> None:
    """Elsewhere nothing is assumed, and a share that a job states has no effect."""
    step_s = {}
    for key, traits in (("open", {}), ("stated", {"older_attention": 0.5})):
        found = predicted("torchtitan", traits=traits, cluster={"node": node})
        step_s[key] = found.result.step_time_s
        assert not any("older_attention" in line for line in found.result.assumed)
        warned = [line for line in found.warnings if "older_attention: has no effect" in line]
        assert len(warned) == (key == "stated")

    assert step_s["open"] == step_s["stated"]


def test_kernels_that_latent_attention_has_in_all_releases_are_not_open() -> None:
    """FlexAttention of torchtitan: the job left nothing open, and is told of no trait."""
    found = predicted(
        "torchtitan", model="deepseek-v2-lite", strategy={"sharding": "zero3", "ep": 8}
    )

    lines = (*found.result.assumed, *found.warnings)
    assert not any("older_attention" in line for line in lines)


def test_kernels_that_latent_attention_has_are_those_of_a_stated_release_too() -> None:
    """Other models of torchtitan 0.2.2 run cuDNN's; a job may still state what it runs."""
    changes = {"model": "deepseek-v2-lite", "strategy": {"sharding": "zero3", "ep": 8}}
    before, own, stated = (
        predicted("torchtitan", released=released, traits=traits, **changes).result
        for released, traits in (
            ("2026-01", {}),
            ("2026-01", {"attention_kernels": "ampere"}),
            ("2026-01", {"attention_kernels": "torch"}),
        )
    )

    assert "fused_loss false: torchtitan as released in 2026-01" in before.assumed
    assert stated.step_time_s < before.step_time_s == own.step_time_s


def test_programs_of_megatron_lm_choose_their_kernels_whatever_its_release() -> None:
    """`--attention-backend` says which; only before cuDNN had any there was nothing to choose."""
    step_s = {
        kernels: predicted("megatron-lm", traits={"attention_kernels": kernels}).result.step_time_s
        for kernels in ("native", "ampere")
    }
    found = {date: predicted("megatron-lm", released=date).result for date in (None, 2026, 2023)}

    assert step_s["native"] < found[None].step_time_s == found[2026].step_time_s < step_s["ampere"]
    assert found[2023].step_time_s == step_s["ampere"]
    assert any(line.startswith("older_attention") for line in found[2026].assumed)


def test_language_models_of_paddle_are_those_of_its_newest_release() -> None:
    """Paddle 2.5 brought flash attention; networks train under autocast throughout."""
    found = {date: predicted("paddle", released=date).result for date in (None, 2024, 2022)}
    parts = {date: each.memory.by_category for date, each in found.items()}

    assert found[None].step_time_s == found[2024].step_time_s < found[2022].step_time_s
    assert parts[None]["parameters"] * 2 == parts[2022]["parameters"]


def test_a_share_of_earlier_kernels_that_there_never_were_is_reported() -> None:
    """Transformer Engine has had its own throughout."""
    found = predicted("megatron-te", traits={"older_attention": 0.5})

    assert any(line.startswith("traits.older_attention: has no effect") for line in found.warnings)


def test_kernels_that_changed_long_ago_are_no_longer_open() -> None:
    """Releases of more than two years ago are named by those who run them."""
    assert older_attention("megatron-core") == ("ampere", 0.0)
    assert older_attention("maxtext") == ("", 0.0)


def test_torchtitan_compiles_what_it_multiplies_in_eight_bits() -> None:
    """Its pages say that float8 needs it; a job may do without."""
    found = {
        (precision, compiled): predicted("torchtitan", precision=precision, compile=compiled)
        for precision in ("bf16", "fp8")
        for compiled in (None, True, False)
    }
    step_s = {key: each.result.step_time_s for key, each in found.items()}

    assert step_s["fp8", None] == step_s["fp8", True] < step_s["fp8", False]
    assert step_s["bf16", None] == step_s["bf16", False]
