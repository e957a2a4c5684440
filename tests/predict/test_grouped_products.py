"""What mixtures outside Megatron take: grouped products, permutation in steps, all experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wattree.cost import load_calibration
from wattree.job import job_from_mapping
from wattree.lowering.model import runs_all_experts
from wattree.lowering.setting import Setting
from wattree.predict import setting_of, simulate

#: A mixture of few layers whose experts decide its time.
MIXTURE = {
    "layers": 2, "hidden": 2048, "heads": 16, "ffn": 1024, "gated": True, "norm": "rms",
    "vocab": 4096, "experts": 16, "top_k": 2, "expert_ffn": 4096,
}  # fmt: skip

#: Two tokens at once, to be continued and as a pass.
GENERATE: dict[str, Any] = {
    "workload": "generate",
    "data": {"prompt_length": 8, "generate_length": 8, "global_batch": 2},
    "precision": "bf16",
    "cluster": {"node": "dgx-h100"},
    "place": {"devices": "0"},
    "strategy": {"dp": 1, "micro_batch": 2},
}
FEW_TOKENS = {
    **GENERATE,
    "workload": "forward",
    "software": "torchtitan",
    "data": {"sequence_length": 2, "global_batch": 1},
    "strategy": {"dp": 1, "micro_batch": 1},
}


def _step_s(node: str, micro_batch: int = 8, **changes: Any) -> float:
    raw = {
        "model": {"transformer": MIXTURE},
        "data": {"sequence_length": 4096, "global_batch": micro_batch},
        "precision": "bf16",
        "cluster": {"node": node},
        "place": {"devices": "0"},
        "software": "torchtitan",
        "strategy": {"micro_batch": micro_batch, "recompute": "none"},
        **changes,
    }
    return simulate(job_from_mapping(raw, source="test")).result.step_time_s


def _slower(node: str, trait: str, **changes: Any) -> float:
    with_it, without = (_step_s(node, traits={trait: given}, **changes) for given in (True, False))
    return with_it / without


def test_grouped_products_lose_more_on_blackwell_than_on_hopper() -> None:
    """PyTorch's kernel reaches 0.9 of one product there, and 0.55 here."""
    hopper, blackwell = (_slower(f"hgx-{name}", "grouped_by_offsets") for name in ("h100", "b200"))

    assert 1.0 < hopper < blackwell < 1 / 0.5


def test_tokens_wait_for_the_experts_that_they_are_sent_to_alone() -> None:
    """Two tokens of eight copies wake up to 16 experts, however many others a rank has."""
    experts = {"top_k": 8, "expert_ffn": 2048}
    found: list[list[float]] = [[], []]
    for number in (64, 256):
        mixture = {**MIXTURE, **experts, "experts": number}
        for times, setting in zip(found, (GENERATE, FEW_TOKENS), strict=True):
            result = simulate(job_from_mapping({**setting, "model": {"transformer": mixture}}))
            use = result.result.generation
            times.append(use.time_per_output_token_s if use else result.result.step_time_s)

    for few, many in found:
        assert many < 1.1 * few


def test_ranks_without_a_token_differ_little_from_those_with_a_few() -> None:
    """One rank of eight has all tokens, or an 80th less; few rows take one tile, not many."""
    for setting in (GENERATE, FEW_TOKENS):
        data = {**setting["data"], "global_batch": 8, "sequence_length": 256}
        if setting is GENERATE:
            del data["sequence_length"]
        times = [
            simulate(
                job_from_mapping(
                    {
                        **setting,
                        "model": {"transformer": MIXTURE},
                        "data": data,
                        "place": {"devices": "0-7"},
                        "strategy": {"dp": 1, "ep": 8, "micro_batch": 1, "expert_imbalance": each},
                    }
                )
            ).result.step_time_s
            for each in (7.9, 8.0)
        ]

        assert times[0] == pytest.approx(times[1], rel=0.02)


def test_tokens_permuted_in_steps_move_more() -> None:
    """Copies that pad, and weights in fp32 between casts; a compiler merges most of these."""
    eager = _slower("hgx-h100", "permutes_in_steps")
    compiled = _slower("hgx-h100", "permutes_in_steps", compile=True)

    assert 1.0 < compiled < eager


def test_only_tpus_that_leave_gathers_to_their_cores_permute_slower_than_memory_streams() -> None:
    """Measured on v5p; XLA leaves those of v7x to SparseCores, and its programs know all sizes."""
    rates = {
        node: _scout("maxtext", node).rates for node in ("tpu-v5p-host", "tpu-v7x-host", "hgx-h100")
    }

    assert [each.permute_rate < 1.0 for each in rates.values()] == [True, False, False]
    rates["xla"] = _scout("torchtitan", "tpu-v5p-host").rates
    assert all(each.moe_host_s == 0.0 for each in rates.values())
    assert _scout("torchtitan", "hgx-h100").rates.moe_host_s > 0.0


@pytest.mark.parametrize(("software", "times"), [("hf-trainer", 16.0), ("torchtitan", 1.0)])
def test_the_transformers_library_runs_all_experts_of_llama_4(software: str, times: float) -> None:
    """Its mixture is a bmm of every expert on every token; others send a token to one."""
    model = _scout(software).model

    experts = next(each for each in model.operators if each.path == "moe.experts.up")

    assert 16 * experts.dim("seq").extent.coefficient == times


def test_model_flop_of_llama_4_is_that_of_routed_tokens_whatever_runs() -> None:
    """A token needs one expert of 16; all others that a library runs are no work of the model."""
    library, routed = (_scout(software).model_flop() for software in ("hf-trainer", "torchtitan"))

    assert library == routed


def test_captured_mixtures_of_llama_4_run_all_experts_as_read_ones_do() -> None:
    """Capture sends tokens to their experts; what the software runs is decided afterwards."""
    setting = _scout("hf-trainer")
    captured = replace(setting.model, own_family=False)

    assert runs_all_experts(captured, setting.software)


def _scout(software: str, node: str = "dgx-h200") -> Setting:
    raw: dict[str, Any] = {
        "model": "llama-4-scout",
        "data": {"sequence_length": 4096, "global_batch": 8},
        "precision": "bf16",
        "cluster": {"node": node},
        "software": software,
    }
    return setting_of(job_from_mapping(raw, source="test"), load_calibration())
