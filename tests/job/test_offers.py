"""What software families can run: data about them, and what is said of a strategy."""

from __future__ import annotations

import re
import typing
from contextlib import nullcontext
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import wattree
from tests.each import each
from wattree.cost import SOFTWARE
from wattree.errors import InfeasibleError, JobError, StrategyError
from wattree.frameworks import export_recipe
from wattree.job.offers import offer_of
from wattree.job.usual import USUAL_STRATEGIES
from wattree.search import Limits
from wattree.strategy import AXES, KNOBS, RECOMPUTATIONS, StrategyOptions

#: A part of the space in which there is what is asked for here.
_PART = Limits(
    axes={"pp": (1,), "cp": (1,)}, micro_batches=(4,), recomputations=("none",), refined=False
)
_OFFERED = [name for name in SOFTWARE if offer_of(name) is not None]


@each("name", _OFFERED)
def test_offers_are_written_in_keys_and_words_of_strategies(name: str) -> None:
    """A misspelt key or value would forbid nothing, or everything."""
    offer = offer_of(name)
    assert offer is not None
    assert offer.version
    assert offer.source
    assert set(offer.axes) <= set(AXES)
    assert set(offer.together) <= set(AXES)
    narrowed = offer.narrowed(architecture="", absent=(), conditions={*offer.under})
    ways = (*offer.together.values(), *narrowed.together.values())
    for choices in (offer.choices, *chain.from_iterable(ways)):
        for key, values in choices.items():
            known = RECOMPUTATIONS if key == "recompute" else KNOBS[key].choices or (True, False)
            assert {*values} - {"block", "modules", "saves"} <= {*known}, key


@each("name", [name for name in _OFFERED if name in USUAL_STRATEGIES])
def test_families_offer_what_their_users_have(name: str) -> None:
    """The usual strategy of a family is one that it can run."""
    offer, usual = offer_of(name), USUAL_STRATEGIES[name]
    assert offer is not None
    assert offer.has("sharding", usual.sharding)
    for way in usual.recompute:
        assert offer.has("recompute", way), way


@pytest.mark.parametrize(
    ("software", "keys", "lacking"),
    [
        ("torchtitan", {"dp": 8, "sharding": "zero1"}, ["sharding zero1"]),
        ("torchtitan", {"dp": 8, "sharding": "zero3"}, []),
        (
            "torchtitan",
            {"cp": 2, "context": "ulysses"},
            ["context ulysses", "sharding none with cp above 1"],
        ),
        # What it never has is not said again of an axis.
        ("torchtitan", {"cp": 2, "context": "gather", "sharding": "zero1"}, ["sharding zero1"]),
        ("torchtitan", {"dp": 8, "context": "ulysses"}, []),
        ("maxtext", {"dp": 8, "sharding": "zero3"}, []),
        ("deepspeed", {"tp": 2, "pp": 2}, ["pp above 1 with tp above 1"]),
        (
            "deepspeed",
            {"cp": 2, "pp": 2, "context": "ulysses"},
            ["pp above 1 with cp above 1", "cp above 1 with pp above 1"],
        ),
        ("maxtext", {"tp": 2}, ["sequence_parallel false with tp above 1"]),
        ("torchtitan", {"dp": 2, "tp": 2, "pp": 2}, []),
        (
            "torchtitan",
            {
                "tp": 2,
                "cp": 2,
                "ep": 2,
                "context": "ring",
                "sharding": "zero3",
                "recompute": "block_2",
                "expert_over_tensor": False,
            },
            ["context ring", "recompute block_2", "expert_over_tensor false with ep above 1"],
        ),
        ("llm-foundry", {"dp": 4, "tp": 2}, ["tp above 1"]),
        ("megatron-core", {"dp": 4, "sharding": "zero3"}, []),
        (
            "megatron-core",
            {"dp": 4, "pp": 2, "sharding": "zero3"},
            ["sharding zero3 with pp above 1"],
        ),
        (
            "megatron-deepspeed",
            {"tp": 2, "sequence_parallel": True},
            ["sequence_parallel true with tp above 1"],
        ),
        ("megatron-deepspeed", {"dp": 2, "ep": 2, "pp": 2, "sharding": "zero1"}, []),
        (
            "megatron-deepspeed",
            {"cp": 2, "ep": 2, "context": "ulysses", "sharding": "zero3"},
            ["sharding zero3 with ep above 1", "cp above 1 with ep above 1"],
        ),
        ("megatron-deepspeed", {"pp": 2, "stage_layers": (5, 7)}, ["stage_layers other than even"]),
        ("megatron-lm-2021", {"pp": 2, "stage_layers": (5, 7)}, ["stage_layers other than equal"]),
        (
            "deepspeed",
            {"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
            ["schedule interleaved"],
        ),
    ],
)
def test_what_software_lacks_of_a_strategy(
    software: str, keys: dict[str, Any], lacking: list[str]
) -> None:
    """Degrees of 1 need nothing of the software."""
    offer = offer_of(software)
    assert offer is not None

    assert list(offer.lacks(StrategyOptions(**keys))) == lacking


def test_whole_replicas_in_bf16_are_none_of_megatron_deepspeed() -> None:
    """Without ZeRO it has BF16_Optimizer, which shards the optimizer's state."""
    offer = offer_of("megatron-deepspeed")
    assert offer is not None
    lacking = {
        precision: list(
            offer.narrowed(architecture="", absent={}, conditions={precision}).lacks(
                StrategyOptions(dp=2)
            )
        )
        for precision in ("bf16", "fp16")
    }
    assert lacking == {"bf16": ["sharding none with dp above 1"], "fp16": []}


@each("samples", [8, 16], more=[24, 32])
def test_interleaving_takes_whole_rounds_of_micro_batches(samples: int) -> None:
    """As Megatron-Core demands: it is warned of, not assumed, not planned, and not exported."""
    degrees = {"dp": 2, "pp": 4, "micro_batch": 2}
    batch = {"sequence_length": 1024, "global_batch": samples}
    is_whole = samples % 16 == 0
    chosen = {**degrees, "schedule": "interleaved", "virtual_stages": 3}

    job = _job(software="megatron-core", data=batch, strategy=chosen)
    left = wattree.simulate(_job(software="megatron-core", data=batch, strategy=degrees))
    wide = Limits(
        axes={"pp": (4,), "tp": (1,), "cp": (1,)}, shardings=("zero1",), recomputations=("none",)
    )
    found = wattree.plan(_job(software="megatron-core", data=batch), top=30, limits=wide)

    assert any("a multiple of pp 4 (global_batch" in line for line in job.warnings) != is_whole
    assert is_whole or not any("virtual_stages" in words for words in left.result.assumed)
    offer = typing.cast("Any", offer_of("megatron-core"))
    for entry in found.ranked:
        assert offer.lacks(entry.options, global_batch=samples) == ()


@each("name", [name for name, usual in USUAL_STRATEGIES.items() if usual.sequence_parallel])
def test_an_assumption_that_a_job_cannot_have_gives_way(name: str) -> None:
    """What a user did not write must not refuse the job; what he wrote must."""
    cluster = {"node": "dgx-a100", "nodes": 3}
    strategy = {"tp": 12, "dp": 2, "micro_batch": 1}
    block = {"layers": 2, "hidden": 1536, "heads": 12, "ffn": 6144, "vocab": 49152}
    mapping = {
        "model": {"transformer": block},
        "data": {"sequence_length": 2048, "global_batch": 8},
        "cluster": cluster,
        "software": name,
        "strategy": strategy,
    }

    assumed = wattree.simulate(wattree.job_from_mapping(mapping)).result.assumed
    strategy["sequence_parallel"] = True

    assert any("sequence_parallel false: true" in words for words in assumed)
    with pytest.raises(StrategyError, match="2048 positions do not divide"):
        wattree.simulate(wattree.job_from_mapping(mapping))


@pytest.mark.parametrize(
    ("batch", "keys", "compiled", "words"),
    [
        (128, {"schedule": "interleaved", "virtual_stages": 2}, False, "16 micro-batches, which"),
        (120, {"schedule": "interleaved", "virtual_stages": 2}, False, ""),
        (16, {"schedule": "1f1b"}, False, "fewer micro-batches (2) than chunks of the model (3)"),
        (32, {"schedule": "dualpipev"}, False, "fewer micro-batches (4) than chunks"),
        (48, {"schedule": "dualpipev"}, False, ""),
        (48, {"schedule": "zb-v"}, True, "zb-v with compile: true"),
        (48, {"schedule": "gpipe", "virtual_stages": 2}, False, "gpipe with virtual_stages above"),
    ],
)
def test_pipelines_that_pytorch_does_not_build_are_warned_of_and_not_exported(
    batch: int, keys: dict[str, Any], *, compiled: bool, words: str, tmp_path: Path
) -> None:
    """Its schedules raise errors for other numbers of micro-batches, and for compiled modules."""
    strategy = {"dp": 8, "pp": 3, "micro_batch": 1, "sharding": "zero2", **keys}
    job = _job(
        model="llama-3.1-8b",
        data={"sequence_length": 1024, "global_batch": batch},
        cluster={"node": "dgx-h100", "nodes": 3},
        strategy=strategy,
        compile=compiled,
    )

    assert any(words in line for line in job.warnings) == bool(words)
    with pytest.raises(JobError, match=re.escape(words)) if words else nullcontext():
        export_recipe(job, "torchtitan", tmp_path)


def test_plan_proposes_pipelines_that_pytorch_builds() -> None:
    """Interleaved 1F1B of 16 micro-batches on 3 stages was ranked first."""
    data = {"sequence_length": 1024, "global_batch": 128}
    wide = Limits(
        axes={"pp": (3,), "tp": (1,), "cp": (1,)},
        micro_batches=(1,),
        shardings=("zero3",),
        recomputations=("none",),
    )

    job = _job(data=data, cluster={"node": "dgx-h100", "nodes": 3})
    found = wattree.plan(job, limits=wide, top=30)
    lifted = wattree.plan(job, limits=wide, top=30, any_software=True)

    offer = typing.cast("Any", offer_of("torchtitan"))
    lacking = [
        [entry for entry in plan.ranked if offer.lacks(entry.options, global_batch=128)]
        for plan in (found, lifted)
    ]
    assert found.ranked
    assert lacking[0] == []
    assert any(entry.options.pipeline.virtual_stages > 1 for entry in lacking[1])


def _job(**changes: Any) -> wattree.Job:
    return wattree.job_from_mapping(
        {
            "model": "gpt2",
            "data": {"sequence_length": 1024, "global_batch": 16},
            "cluster": {"node": "dgx-h100", "nodes": 1},
            "software": "torchtitan",
            **changes,
        }
    )


def test_a_job_is_warned_of_what_its_software_lacks() -> None:
    """It is predicted all the same: software gains features, and devices."""
    job = _job(strategy={"dp": 8, "sharding": "zero1"})
    foreign = _job(cluster={"node": "tpu-v5p-host"})

    assert any("not on tpu-v5p (tpu)" in line for line in foreign.warnings)
    assert any("sharding zero1 is not offered by torchtitan" in line for line in job.warnings)
    assert not _job(strategy={"dp": 8, "sharding": "zero3"}).warnings


@cache
def _planned() -> wattree.Plan:
    return wattree.plan(_job(), top=30, limits=_PART)


def test_plan_proposes_only_what_the_software_can_run() -> None:
    """And says what it left out; `any_software` lifts it."""
    found = _planned()
    lifted = wattree.plan(_job(), top=30, any_software=True, limits=_PART)

    offer = typing.cast("Any", offer_of("torchtitan"))
    assert found.ranked
    assert all(offer.lacks(entry.options) == () for entry in found.ranked)
    assert any("zero1" in words for words in found.not_offered)
    assert lifted.not_offered == ()
    assert lifted.candidates > found.candidates


def test_where_nothing_fits_the_features_left_out_are_named() -> None:
    """Some of them may be what would fit."""
    words = "not tried, because the software cannot run it (--any-software tries it): "
    with pytest.raises(InfeasibleError, match=re.escape(words)):
        wattree.plan(_job(), deadline_s=1e-9, limits=_PART)


def test_plan_without_software_is_not_restricted() -> None:
    """The family that the kind of model stands for is no choice of the user."""
    free = wattree.plan(
        wattree.job_from_mapping(
            {
                "model": "gpt2",
                "data": {"sequence_length": 1024, "global_batch": 16},
                "cluster": {"node": "dgx-h100", "nodes": 1},
            }
        ),
        top=3,
        limits=_PART,
    )

    assert free.not_offered == ()
    assert free.candidates > _planned().candidates


def test_only_what_makes_it_fit_and_the_software_has_is_advised() -> None:
    """Weights and state alone are too large, and FSDP2 moves both to the host or none."""
    given = wattree.job_from_mapping(
        {
            "model": "llama-3.1-70b",
            "data": {"sequence_length": 8192, "global_batch": 16},
            "cluster": {"node": "dgx-h100"},
            "software": "torchtitan",
        }
    )
    with pytest.raises(InfeasibleError) as error:
        wattree.plan(given, limits=Limits(axes={"pp": (1,), "cp": (1,)}, recomputations=("full",)))

    assert re.fullmatch(
        r"  what would help: .*zero3.* with 'offload: {optimizer: host, parameters: host}', which "
        r"fits with [\d.]+ s per step; 2 nodes \(by the closed form\), devices with more memory, "
        r"or adapters in place of all weights \(model\.lora\)",
        str(error.value).splitlines()[-1],
    )
