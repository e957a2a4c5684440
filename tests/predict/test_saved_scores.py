"""Memory of the scores that attention keeps where it is not one kernel."""

from __future__ import annotations

import pytest

import wattree
from wattree.cost import load_calibration
from wattree.job import job_from_mapping
from wattree.predict import setting_of

#: A model whose peak is at its loss.
_WIDE = {"layers": 1, "hidden": 256, "heads": 4, "vocab": 64000, "ffn": 512, "norm": "rms"}
_LAYERS, _HEADS, _LENGTH, _BATCH = 24, 16, 512, 4


def activations(software: str, precision: str, *, fused: bool) -> float:
    """Return the memory of activations of a step of BERT. [B]"""
    job = job_from_mapping(
        {
            "model": "bert-large",
            "data": {"sequence_length": _LENGTH, "global_batch": _BATCH},
            "precision": precision,
            "cluster": {"node": "dgx-1"},
            "place": {"devices": 0},
            "software": software,
            "traits": {"fused_attention": fused},
            "strategy": {"micro_batch": _BATCH, "recompute": "none"},
        }
    )
    return wattree.simulate(job).result.memory.by_category["activations"]


@pytest.mark.parametrize(
    ("software", "precision", "score_bytes"),
    [
        ("megatron-lm-2021", "fp16", 2 + 1 + 2),  # Korthikanti 2022, equation 1
        ("megatron-lm-2021", "fp32", 4 + 1 + 4),
        ("hf-trainer", "fp16", 4 + 1 + 2),  # autocast runs softmax in fp32 and casts its result
        ("hf-trainer", "fp32", 4 + 1 + 4),
    ],
)
def test_softmax_mask_and_result_are_kept(
    software: str, precision: str, score_bytes: float
) -> None:
    """At the widths that the software computes them in."""
    kept = activations(software, precision, fused=False) - activations(
        software, precision, fused=True
    )

    assert kept == pytest.approx(_LAYERS * _BATCH * _HEADS * _LENGTH**2 * score_bytes, rel=0.02)


def gpt_j(**changes: object) -> wattree.Result:
    """Return the result of a step of GPT-J, whose attention the transformers library writes out."""
    job = {
        "model": "gpt-j-6b",
        "data": {"sequence_length": _LENGTH, "global_batch": 16},
        "precision": "bf16",
        "cluster": {"node": "dgx-h200"},
        "place": {"devices": 0},
        "optimizer": "sgd",
        "strategy": {"micro_batch": 16, "recompute": "none"},
    }
    return wattree.simulate(job_from_mapping(job | changes)).result


@pytest.mark.parametrize(
    ("model", "precision", "score_bytes"),
    [
        ("gpt-j-6b", "fp32", 4),  # values are weighted by softmax's result itself
        ("gemma-2-2b", "bf16", 4 + 2 + 2),  # the tanh that caps scores keeps its result
        ("gemma-2-2b", "fp32", 4 + 4),
    ],
)
def test_what_is_not_dropped_is_kept_once(model: str, precision: str, score_bytes: float) -> None:
    """Neither model drops scores."""
    kept = {
        fused: gpt_j(
            model=model,
            precision=precision,
            software="hf-trainer",
            traits={"fused_attention": fused},
        ).memory.live
        for fused in (False, True)
    }
    eager = [each for each in kept[False] if each.name == "attention.core.scores"]
    scores = 16 * _LENGTH**2 * {"gpt-j-6b": 16, "gemma-2-2b": 8}[model]

    assert not any(each.name == "attention.core.scores" for each in kept[True])
    assert {each.bytes / each.tensors for each in eager} == {score_bytes * scores}


@pytest.mark.parametrize(
    ("software", "more", "cap_bytes"),
    [
        ("hf-trainer", {}, 2),
        ("pytorch", {}, 2),
        ("megatron-core", {}, 2),
        ("hf-trainer", {"precision": "fp32"}, 4),
        ("hf-trainer", {"compile": True}, 0),  # a compiler caps them again in backward
        ("hf-trainer", {"traits": {"fused_loss": True}}, 0),
    ],
)
def test_capped_logits_are_kept_as_others_are_and_their_tanh(
    software: str, more: dict[str, object], cap_bytes: float
) -> None:
    """The loss keeps what it does without a cap: `Gemma2ForCausalLM.forward`."""
    kept = [
        gpt_j(
            model={"transformer": {**_WIDE, "logit_softcap": capped}}, software=software, **more
        ).memory.by_category["activations"]
        for capped in (False, True)
    ]

    assert kept[1] - kept[0] == pytest.approx(16 * _LENGTH * _WIDE["vocab"] * cap_bytes)


def test_a_library_without_a_fused_kernel_keeps_scores_and_says_so() -> None:
    """Other software has one for every model; a stated trait holds."""
    eager = gpt_j(software="hf-trainer")
    fused = gpt_j(software="hf-trainer", traits={"fused_attention": True})
    others = [gpt_j(software=name) for name in ("megatron-core", "generic")]

    kept = eager.memory.by_category["activations"] - fused.memory.by_category["activations"]
    assert kept == pytest.approx(28 * 16 * 16 * _LENGTH**2 * (4 + 2), rel=0.02)
    said = [any("saves its scores" in line for line in each.assumed) for each in (eager, fused)]
    assert said == [True, False]
    assert not any("saves its scores" in line for each in others for line in each.assumed)


@pytest.mark.parametrize(
    ("model", "released", "is_fused"),
    [
        ("bert-large", "2024-04", False),
        ("bert-large", "2024-05", True),
        ("bert-large", None, True),
        ("t5-small", None, False),  # most releases of two years
        ("t5-small", "2026-08", True),
        ("bloom-560m", "2026-08", False),
        ("gpt2", "2023-11", False),
        ("stable-diffusion-1.5", "2023-11", True),  # diffusers 0.13
        ("stable-diffusion-1.5", "2023-02", False),  # PyTorch 1
    ],
)
def test_types_run_on_sdpa_since_their_own_release(
    model: str, released: str | None, *, is_fused: bool
) -> None:
    """The transformers library took it up one type after another, later than diffusers."""
    job = job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": 8} | ({} if "diff" in model else {"sequence_length": 512}),
            "cluster": {"node": "dgx-a100"},
            "software": "hf-trainer",
            "strategy": {"dp": 8},
            **({"released": released} if released else {}),
        }
    )

    found = setting_of(job, load_calibration())

    assert found.software.fused_attention is is_fused
    said = any("saves its scores" in each or "fused_att" in each for each in found.job.assumed)
    assert is_fused is not said
