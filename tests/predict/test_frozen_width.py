"""How wide frozen parameters are stored, and that what has 16 bits is not cast."""

from __future__ import annotations

from typing import Any

import pytest

import wattree
from wattree.cost import load_calibration
from wattree.job import Job, job_from_mapping
from wattree.predict import setting_of

ADAPTERS = {"name": "llama-3.2-1b", "lora": {"rank": 8, "targets": ["attention.*"]}}
FROZEN = {"name": "llama-3.2-1b", "freeze": ["layers.0.*"]}
NARROW = {"parameter_bytes": 2}


def job(model: object, sharding: str, software: str = "hf-trainer", **changes: Any) -> Job:
    """Return a job of two devices."""
    strategy = {"dp": 2, "micro_batch": 1, "sharding": sharding, "recompute": "none"}
    return job_from_mapping(
        {
            "model": model,
            "data": {"sequence_length": 512, "global_batch": 4},
            "precision": "bf16",
            "cluster": {"node": "2x-rtx-4090"},
            "software": software,
            "strategy": strategy,
        }
        | changes
    )


def parameters_bytes(asked: Job) -> float:
    """Return the memory of parameters on a device. [B]"""
    return wattree.simulate(asked).result.memory.by_category["parameters"]


@pytest.mark.parametrize("software", ["hf-trainer", "accelerate"])
def test_frozen_parameters_have_the_16_bits_of_a_checkpoint(software: str) -> None:
    """All but the adapters, which PEFT casts to fp32."""
    all_of, trained = 1_235_814_400, 8 * 16 * (2048 + 3072 + 2048 + 2048)
    found = parameters_bytes(job(ADAPTERS, "none", software))

    assert found == pytest.approx(2 * all_of + 4 * trained, rel=1e-3)


def test_fsdp_shards_them_in_fp32() -> None:
    """`fsdp2_prepare_model` casts the whole model."""
    assert parameters_bytes(job(ADAPTERS, "zero3")) == pytest.approx(2 * 1_235_814_400, rel=0.01)


@pytest.mark.parametrize(
    "changes",
    [{"precision": "fp32"}, {"traits": {"frozen_bytes": 4}}, {"traits": {"parameter_bytes": 4}}],
    ids=["fp32", "frozen", "all"],
)
def test_jobs_may_say_otherwise(changes: dict[str, Any]) -> None:
    """In fp32 nothing is narrow; a trait says what a script loads."""
    found = parameters_bytes(job(ADAPTERS, "none", **changes))

    assert found == pytest.approx(4 * 1_235_814_400, rel=0.01)


@pytest.mark.parametrize(("model", "sharding"), [(ADAPTERS, "none"), ("llama-3.2-1b", "zero3")])
def test_what_has_16_bits_is_not_cast(model: object, sharding: str) -> None:
    """Steps take as long as those of a model that is stored so, and keep as much."""
    found = wattree.simulate(job(model, sharding)).result
    narrow = wattree.simulate(job(model, sharding, traits=NARROW)).result

    assert found.time_s.compute == pytest.approx(narrow.time_s.compute, rel=0.02)
    kept = [each.memory.by_category["activations"] for each in (found, narrow)]
    assert kept[0] == pytest.approx(kept[1], rel=0.02)


def test_trained_parameters_without_fsdp_are_cast() -> None:
    """Autocast reads fp32 in every pass, and the answer says that it was assumed."""
    asked = job("llama-3.2-1b", "none")
    found, narrow = (
        wattree.simulate(each).result
        for each in (asked, job("llama-3.2-1b", "none", traits=NARROW))
    )

    assert found.time_s.compute > 1.02 * narrow.time_s.compute
    assert any("stored in fp32" in line for line in found.assumed)
    assert not any("stored in fp32" in line for line in narrow.assumed)


@pytest.mark.parametrize(
    ("model", "words"),
    [("llama-3.2-1b", "without FSDP"), (FROZEN, "as with PEFT"), (ADAPTERS, "as with PEFT")],
)
def test_peft_is_named_where_the_job_freezes(model: object, words: str) -> None:
    """And not where all is trained that a gradient reaches."""
    said = [line for line in wattree.simulate(job(model, "none")).result.assumed if "fp32" in line]

    assert len(said) == 1
    assert words in said[0]


def test_parameters_without_a_gradient_are_not_taken_for_frozen_ones() -> None:
    """A tower that gets no images: the hint for the trained ones stays."""
    frozen = setting_of(job(FROZEN, "none"), load_calibration()).model
    found = setting_of(job("llama-3.2-1b", "none"), load_calibration(), model=frozen).job.assumed

    assert any("without FSDP" in line for line in found)
    assert any("no gradient reaches" in line for line in found)


@pytest.mark.parametrize(("model", "passes"), [("llama-3.2-1b", 6.0), (ADAPTERS, 4.0)])
def test_compiled_norms_read_nothing_again_for_frozen_weights(model: Any, passes: float) -> None:
    """Their backward without gradients of weights: three reads and a write of their results."""
    made = {
        "model": model,
        "data": {"sequence_length": 64, "global_batch": 1},
        "cluster": {"node": "dgx-h100"},
        "place": {"devices": 0},
        "software": "torchtitan",
        "compile": True,
        "strategy": {"micro_batch": 1, "recompute": "none"},
    }
    graph = wattree.simulate(job_from_mapping(made)).trace.graph
    traffic = [
        moved
        for name, moved in zip(graph.name_ids, graph.memory_traffic_bytes, strict=True)
        if graph.names[name] == "mlp_norm"
    ]
    assert max(traffic) == pytest.approx(passes * 64 * 2048 * 2)
