"""A prediction's figures agree with each other and with what the model needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tests.each import each
from tests.samples import sample_trace
from tests.search.jobs import FEWEST
from wattree.accounts.breakdown import time_parts
from wattree.accounts.class_sums import class_sums
from wattree.job import Job, job_from_mapping
from wattree.predict import Prediction, estimate, power_sweep, simulate
from wattree.search import plan
from wattree.trace import Result

LAYERS, HIDDEN, HEADS, FFN, VOCABULARY = 4, 512, 8, 2048, 32_000
SEQUENCE, BATCH = 1024, 32
DENSE = {
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": HEADS,
    "ffn": FFN,
    "vocab": VOCABULARY,
    "norm": "rms",
    "positions": "rotary",
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"preset": "ddp"},
    "zero1": {"preset": "zero1"},
    "fsdp": {"preset": "fsdp"},
    "hsdp": {"preset": "hsdp"},
    "tensor": {"preset": "tensor", "tp": 4},
    "megatron": {"preset": "megatron", "tp": 2},
    "pipeline": {"preset": "megatron", "pp": 4},
    "interleaved": {"preset": "megatron", "pp": 2, "virtual_stages": 2},
    "context": {"preset": "zero1", "cp": 4},
    "ring": {"preset": "zero1", "cp": 4, "context": "ring"},
    "ulysses": {"preset": "zero1", "cp": 4, "context": "ulysses"},
    "recomputed": {"preset": "ddp", "recompute": "full"},
}


@cache
def predicted(name: str, nodes: int = 1, power_limit_w: float | None = None) -> Prediction:
    """Return the prediction of a strategy on H100 nodes."""
    job = job_from_mapping(
        {
            "model": {"transformer": DENSE},
            "data": {"sequence_length": SEQUENCE, "global_batch": BATCH},
            "cluster": {"node": "dgx-h100", "nodes": nodes},
            "strategy": STRATEGIES[name],
        }
    )
    return simulate(job, power_limit_w=power_limit_w)


def result(name: str, **where: Any) -> Result:
    """Return its figures."""
    return predicted(name, **where).result


AGAIN: dict[str, Callable[[Job], object]] = {
    "simulate": simulate,
    "result": lambda job: simulate(job).result,
    "estimate": estimate,
    "plan": partial(plan, limits=FEWEST),
    "power_sweep": lambda job: power_sweep(job, (300.0,)),
    "job": replace,
}


@each("name", AGAIN)
def test_the_same_call_gives_an_equal_value_that_can_be_a_key(name: str) -> None:
    """How long this machine took is no part of a prediction."""
    job = job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 128, "global_batch": 8},
            "cluster": {"node": "dgx-a100"},
            "strategy": {"dp": 8},
        }
    )
    first, second = AGAIN[name](job), AGAIN[name](job)

    assert first is not second
    assert len({first, second}) == 1


def test_traces_are_equal_to_themselves_alone() -> None:
    """Arrays have no truth value, so comparing fields raised an error; one line shows each."""
    trace = sample_trace()

    assert [trace] == [trace] != [replace(trace)]
    assert re.fullmatch(r"<Trace: [\d,]+ tasks, .{1,20}>", repr(trace))


def needed_flop() -> float:
    """Return the FLOP of a step, worked out here.

    Two per multiply-add, three times forward (Narayanan et al., SC 2021, appendix); causal scores
    are half of the square, the diagonal included.
    """
    tokens = BATCH * SEQUENCE
    products = LAYERS * (4 * HIDDEN**2 + 2 * HIDDEN * FFN) + HIDDEN * VOCABULARY
    scores = BATCH * SEQUENCE * (SEQUENCE + 1) / 2
    attention = LAYERS * 2 * scores * HIDDEN
    return 3 * 2 * (tokens * products + attention)


# ---------------------------------------------------------------- time


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_parts_of_the_step_add_up_to_it(name: str) -> None:
    """Every moment of the slowest rank is under exactly one heading."""
    found = result(name)
    parts = [getattr(found.time_s, field.name) for field in fields(found.time_s)]

    assert sum(parts) == pytest.approx(found.step_time_s, rel=1e-9)
    assert min(parts) >= -1e-12


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_rank_class_s_time_adds_up(name: str) -> None:
    """Not only the slowest rank's."""
    trace = predicted(name).trace

    for rank_class in range(len(trace.graph.class_ranks)):
        parts = time_parts(trace, rank_class)
        total = sum(getattr(parts, field.name) for field in fields(parts))
        assert total == pytest.approx(trace.makespan_s, rel=1e-9)
        assert parts.compute >= 0.0


def test_time_is_put_under_its_heading() -> None:
    """Compute 0-1, nothing until an all-reduce at 2-2.5, then the optimizer."""
    trace = sample_trace()

    parts = time_parts(trace, 0)

    assert (parts.compute, parts.optimizer) == (1.0, 0.25)
    assert parts.exposed_communication == 0.5
    assert parts.bubble == 1.0


def test_the_slowest_class_is_the_one_that_computes_longest() -> None:
    """The second class computes for two seconds, the first for less."""
    assert class_sums(sample_trace()).slowest == 1


def test_pipelines_have_bubbles_and_single_stages_have_none() -> None:
    """A rank that is alone on its stage of one has no one to wait for."""
    assert result("pipeline").time_s.bubble > 0.0
    assert result("ddp").time_s.bubble == pytest.approx(0.0, abs=1e-9)


# ---------------------------------------------------------------- work


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_model_needs_the_same_flop_whatever_the_strategy(name: str) -> None:
    """Model FLOP belong to the model; recomputation is left out."""
    assert result(name).model_flop_per_step == pytest.approx(needed_flop(), rel=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_the_model_needs_the_same_flop_whatever_the_attention_kernels(*, causal: bool) -> None:
    """Unfused kernels execute masked scores; the model needs none of them."""
    needed = set()
    for fused in (True, False):
        job = job_from_mapping(
            {
                "model": {"transformer": DENSE | {"causal": causal}},
                "data": {"sequence_length": SEQUENCE, "global_batch": BATCH},
                "cluster": {"node": "dgx-h100"},
                "strategy": STRATEGIES["ddp"],
                "traits": {"fused_attention": fused},
            }
        )
        needed.add(round(simulate(job).result.model_flop_per_step / 1e6))

    assert len(needed) == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_utilisation_is_a_share_and_recomputation_is_what_tells_both_apart(name: str) -> None:
    """MFU counts what the model needs, HFU what was executed."""
    found = result(name)

    assert 0.0 < found.mfu <= found.hfu < 1.0
    # The fifth backward product of fused attention is executed too, a few percent at most.
    assert (found.hfu > 1.1 * found.mfu) == (name == "recomputed")


def test_full_recomputation_executes_forward_once_more() -> None:
    """A third of what the layers need, on top of what runs without recomputation."""
    found, plain = result("recomputed"), result("ddp")
    tokens = BATCH * SEQUENCE
    head = 3 * 2 * tokens * HIDDEN * VOCABULARY

    again = (found.hfu / found.mfu - plain.hfu / plain.mfu) * needed_flop()

    assert again == pytest.approx((needed_flop() - head) / 3, rel=1e-6)


def test_throughput_follows_from_the_step() -> None:
    """Samples, tokens and tokens per device."""
    found = result("ddp")

    assert found.samples_per_s == pytest.approx(BATCH / found.step_time_s)
    assert found.tokens_per_s == pytest.approx(BATCH * SEQUENCE / found.step_time_s)
    assert found.tokens_per_s_per_device == pytest.approx(found.tokens_per_s / 8)  # type: ignore[operator]


# ---------------------------------------------------------------- memory


@pytest.mark.parametrize("name", STRATEGIES)
def test_categories_of_memory_add_up_to_the_peak(name: str) -> None:
    """Whatever is held at the peak is under exactly one heading."""
    memory = result(name).memory

    assert sum(memory.by_category.values()) == pytest.approx(memory.peak_bytes, rel=1e-9)
    assert min(memory.by_category.values()) >= 0.0


def test_sharding_and_recomputation_save_memory() -> None:
    """ZeRO-1 below DDP, FSDP below ZeRO-1, recomputation below keeping."""
    peak = {name: result(name).memory.peak_bytes for name in STRATEGIES}

    assert peak["fsdp"] < peak["zero1"] < peak["ddp"]
    assert peak["recomputed"] < peak["ddp"]


# ---------------------------------------------------------------- energy


@pytest.mark.parametrize("name", STRATEGIES)
def test_energy_adds_up_by_stage_and_by_kind(name: str) -> None:
    """Every joule belongs to one stage, and is either static or dynamic."""
    energy = result(name).energy_j

    assert sum(energy.by_stage.values()) == pytest.approx(energy.total, rel=1e-9)
    assert energy.static + energy.dynamic == pytest.approx(energy.total, rel=1e-9)
    assert min(energy.by_stage.values()) >= 0.0
    assert set(energy.by_stage) == {"materials", "computing", "communicating"}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("nodes", [1, 2])
def test_average_power_lies_between_rest_and_rated(name: str, nodes: int) -> None:
    """DGX H100 devices draw 70 to 700 W; host and switches stand alongside them."""
    prediction = predicted(name, nodes=nodes)
    found = prediction.result
    standing_w = found.energy_j.static / found.energy_j.total * found.average_power_w
    devices = 8 * nodes

    assert standing_w < found.average_power_w <= standing_w + devices * (700 - 70) * (1 + 1e-9)
    assert found.peak_power_w >= found.average_power_w * (1 - 1e-9)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_power_curve_holds_the_energy_of_the_step(name: str) -> None:
    """Its integral is the average power over the step."""
    prediction = predicted(name)
    watts = np.array([w for _, w in prediction.power])

    assert float(watts.mean()) == pytest.approx(prediction.result.average_power_w, rel=1e-6)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-3.2-1b"])
@pytest.mark.parametrize("power_limit_w", [None, 400.0])
def test_power_never_exceeds_what_the_devices_may_draw(
    model: str, power_limit_w: float | None
) -> None:
    """Gradients that travel behind products at rated power add nothing to it."""
    job = job_from_mapping(
        {
            "model": model,
            "data": {"sequence_length": 4096, "global_batch": 128},
            "cluster": {"node": "dgx-h100", "nodes": 8},
            "strategy": {"preset": "zero3"},
        }
    )
    prediction = simulate(job, power_limit_w=power_limit_w)
    found = prediction.result
    watts = np.array([w for _, w in prediction.power])
    standing_w = found.energy_j.static / found.energy_j.total * found.average_power_w
    behind = job.cluster.node.host.behind
    most_w = standing_w + 64 * ((power_limit_w or 700.0) - 70.0) * behind

    assert found.peak_power_w <= most_w * (1 + 1e-9)
    assert float(watts.mean()) == pytest.approx(found.average_power_w, rel=1e-6)


def test_a_power_cap_slows_the_step_and_lowers_the_power() -> None:
    """Matrix work gives way; nothing exceeds the cap."""
    free, capped = result("ddp"), result("ddp", power_limit_w=400.0)

    assert capped.step_time_s > free.step_time_s
    assert capped.average_power_w < free.average_power_w
    assert capped.energy_j.dynamic < free.energy_j.dynamic


def test_a_cap_above_rated_power_changes_no_figure() -> None:
    """It never binds."""
    free, capped = result("ddp"), result("ddp", power_limit_w=900.0)

    assert capped.step_time_s == free.step_time_s
    assert capped.energy_j == free.energy_j


def test_carbon_and_cost_follow_energy_and_time() -> None:
    """Both are proportional."""
    one, two = result("ddp"), result("recomputed")

    assert one.carbon_gco2e is not None
    assert two.carbon_gco2e is not None
    ratio = two.energy_j.total / one.energy_j.total
    assert two.carbon_gco2e / one.carbon_gco2e == pytest.approx(ratio, rel=1e-12)


def test_redundant_work_is_executed_but_not_needed() -> None:
    """Ranks that all do the same do not make the model larger."""
    job = job_from_mapping(
        {
            "model": {"transformer": DENSE},
            "data": {"sequence_length": SEQUENCE, "global_batch": BATCH},
            "cluster": {"node": "dgx-h100"},
            "strategy": {"mesh": {"dp": 8}, "tree": {}},
        }
    )
    found = simulate(job).result

    assert found.model_flop_per_step == pytest.approx(needed_flop(), rel=1e-9)
    assert found.hfu > 7 * found.mfu
