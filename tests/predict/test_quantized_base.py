"""Frozen linear layers of 4 and 8 bits: what they take, and what making them wide takes."""

from __future__ import annotations

from collections import Counter

import pytest

import wattree
from tests.search.jobs import FEWEST
from wattree.capture.linear_layers import STORED_BYTES
from wattree.errors import WattreeError
from wattree.job import job_from_mapping

#: Llama 2 7B: linear layers of its layers; tables, head and norms.
_LINEAR, _REST = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 2 * 32_000 * 4096 + 65 * 4096
_ADAPTERS = 32 * 8 * 3 * (4096 + 4096)


def result(base: str | None, **changes: object) -> wattree.Result:
    """Return the result of a step of one sequence, in 16 bits throughout."""
    lora = {"rank": 8, "targets": ["attention.qkv"]} | ({"base": base} if base else {})
    job = {
        "model": {"name": "llama-2-7b", "lora": lora},
        "data": {"sequence_length": 512, "global_batch": 1},
        "precision": "bf16",
        "cluster": {"node": "dgx-a100-40gb"},
        "place": {"devices": 0},
        "software": "pytorch",
        "traits": {"autocast": False, "parameter_bytes": 2, "gradient_bytes": 2},
        "strategy": {"micro_batch": 1, "recompute": "none"},
    }
    return wattree.simulate(job_from_mapping(job | changes)).result


@pytest.mark.parametrize("base", STORED_BYTES)
def test_linear_layers_take_their_bits_and_scales(base: str) -> None:
    """Tables, head, norms and adapters stay wide."""
    found = result(base).memory.by_category["parameters"]

    assert found == pytest.approx(_LINEAR * STORED_BYTES[base] + 2 * (_REST + _ADAPTERS), rel=1e-6)


def test_each_pass_makes_them_wide_again() -> None:
    """In forward and for the gradient of the input, however many tokens there are."""
    longer = [
        result("nf4", data=data).step_time_s - result(None, data=data).step_time_s
        for data in ({"sequence_length": length, "global_batch": 1} for length in (2048, 4096))
    ]
    moved = 2 * _LINEAR * (STORED_BYTES["nf4"] + 2)

    assert longer[0] == pytest.approx(longer[1], rel=0.1)
    # A100 40 GB: LitGPT measured 79 ms, its head among them.
    assert moved / 1.555e12 < longer[0] < 0.12


def test_8_bits_are_copied_and_scaled_in_backward() -> None:
    """A copy to 16 bits and a product in place; forward multiplies by them as they are."""
    data = {"sequence_length": 2048, "global_batch": 1}  # so many that no host holds devices up
    longer = result("int8", data=data).step_time_s - result(None, data=data).step_time_s
    assert longer == pytest.approx(_LINEAR * (1 + 3 * 2) / 1.555e12, rel=0.25)


@pytest.mark.parametrize("released", ["2024-07", "2026-01"])
def test_every_bitsandbytes_saves_the_inputs_of_8_bit_layers(released: str) -> None:
    """`MatMul8bitLt` holds them: a norm's output, and the product of gate and up projections."""
    eight, four = (
        result(base, released=released).memory.by_category["activations"]
        for base in ("int8", "nf4")
    )
    more = 32 * 512 * (4096 + 11008) * 2 if released > "2024-07" else 0
    assert eight - four == pytest.approx(more, rel=1e-6)


def test_earlier_bitsandbytes_saves_the_inputs_of_frozen_layers() -> None:
    """Those that nothing else saves, of gate and down projections: a norm's, and a product."""
    older, since, stated = (
        result("nf4", **changes).memory.by_category["activations"]
        for changes in ({"released": "2024-07"}, {"released": "2024-08"}, {})
    )

    assert older - since == pytest.approx(32 * 512 * (4096 + 11008) * 2, rel=1e-6)
    assert since == stated
    assert result(None, released="2024-07").memory == result(None, released="2024-08").memory


@pytest.mark.parametrize(
    ("software", "changes", "wide"),
    [
        ("hf-trainer", {"traits": {"frozen_bytes": 4}}, ("hidden", "logits")),
        ("hf-trainer", {"released": "2024-10", "precision": "fp16"}, ("hidden", "logits")),
        ("hf-trainer", {"released": "2024-10"}, ("hidden",)),
        ("hf-trainer", {"released": "2024-10", "traits": {"frozen_bytes": 2}}, ()),
        ("hf-trainer", {"released": "2025-12"}, ()),
        ("hf-trainer", {}, ()),
        ("accelerate", {}, ("hidden", "logits")),
        ("accelerate", {"traits": {"frozen_bytes": 2}}, ()),
        ("deepspeed", {}, ()),
        ("generic", {}, ()),
    ],
)
def test_peft_keeps_what_layers_pass_on_in_fp32(
    software: str, changes: dict[str, object], wide: tuple[str, ...]
) -> None:
    """`prepare_model_for_kbit_training` casts norms, embedding and head; autocast no 4 bits.

    TRL's trainers cast embedding and head back at bf16 (`peft_module_casting_to_bf16`).
    """
    strategy = {"micro_batch": 1, "recompute": "full"}
    changes = {"traits": {}} | changes
    memory = result("nf4", software=software, strategy=strategy, **changes).memory
    casts = Counter[str]()
    for each in memory.live:
        casts[each.name.partition(".")[0]] += int(each.bytes) * ("cast" in each.name)

    # Of the inputs of all layers (and the head's, at the loss), and the head's own 16-bit copy.
    inputs = 2.0 * 512 * 4096 * (33 if "logits" in wide else 32)
    found = {"hidden": inputs, "logits": 2.0 * 32_000 * 4096}
    assert {name: casts[name] for name in found if casts[name]} == {
        name: found[name] for name in wide
    }
    rest = 4 if "logits" in wide else 2
    adapters = 4 if software in {"hf-trainer", "accelerate"} else 2
    expected = _LINEAR * STORED_BYTES["nf4"] + rest * _REST + adapters * _ADAPTERS
    assert memory.by_category["parameters"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("expert_layers", "experts"), [(False, 0), (True, 8)])
def test_experts_keep_their_width(
    expert_layers: bool,  # noqa: FBT001 - of the software
    experts: int,
) -> None:
    """They are one tensor, not linear layers, since transformers 5."""
    traits = {"parameter_bytes": 2, "autocast": False, "expert_layers": expert_layers}
    job = {"name": "mixtral-8x7b", "lora": {"rank": 8, "targets": ["attention.qkv"]}}
    wide, narrow = (
        result(
            None,
            model=job | {"lora": {**job["lora"], **more}},
            cluster={"node": "dgx-b200"},
            traits=traits,
        )
        for more in ({}, {"base": "nf4"})
    )
    saved = wide.memory.by_category["parameters"] - narrow.memory.by_category["parameters"]

    attention, expert = 32 * (2 * 4096**2 + 2 * 4096 * 1024), 32 * 3 * 4096 * 14336
    quantized = attention + experts * expert
    assert saved == pytest.approx(quantized * (2 - STORED_BYTES["nf4"]), rel=1e-6)


@pytest.mark.parametrize("lora", [{"targets": ["all-linear"]}, {"targets": ["fc"], "base": "nf4"}])
def test_a_model_without_linear_layers_is_refused(lora: dict[str, object]) -> None:
    """In words of what is missing, not silently left as it is."""
    with pytest.raises(WattreeError, match="no linear layer"):
        result(
            None, model={"name": "resnet-50", "lora": {"rank": 8, **lora}}, data={"global_batch": 8}
        )


def test_all_linear_leaves_out_gates_of_one_feature() -> None:
    """Qwen 2 MoE's shared experts have one, which no rank lowers."""
    found = result(
        None,
        model={"name": "qwen1.5-moe-a2.7b", "lora": {"rank": 16, "targets": ["all-linear"]}},
        cluster={"node": "dgx-b200"},
    )

    assert found.parameters > 14e9


def test_a_job_that_names_no_software_gets_one_that_has_the_format() -> None:
    """Megatron-Core has no NF4: neither its defaults nor its axes say anything of them."""
    given = {
        "model": {"name": "llama-3.2-1b", "lora": {"rank": 8, "base": "nf4"}},
        "data": {"sequence_length": 512, "global_batch": 16},
        "cluster": {"node": "dgx-a100-40gb"},
    }
    found = wattree.plan(job_from_mapping(given), limits=FEWEST)

    assert found.best is not None
    assert "'hf-trainer', as the job names no software" in found.best.result.assumed[0]
    assert "tp above 1" in found.not_offered


def test_8_bits_are_not_sharded() -> None:
    """FSDP shards floating-point types, as which bitsandbytes can store 4 bits, but not 8."""
    lora = {"rank": 8, "targets": ["all-linear"], "base": "int8"}
    given = {
        "model": {"name": "llama-3.1-70b", "lora": lora},
        "data": {"sequence_length": 512, "global_batch": 16},
        "cluster": {"node": "8x-rtx-3090"},
        "software": "hf-trainer",
    }
    sharded = {"preset": "zero3", "recompute": "full"}
    found = wattree.simulate(job_from_mapping({**given, "strategy": sharded}))

    words = "sharding zero3 with dp above 1 is not offered by hf-trainer"
    assert any(words in each and "with a base in int8" in each for each in found.warnings)
    with pytest.raises(WattreeError, match="nothing fits"):  # of 24 GiB, as NF4 does, sharded
        wattree.plan(job_from_mapping(given), limits=FEWEST)
