"""Settings that the closed form knows, against the played step."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.search.jobs import setting
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.expressible import is_expressible
from wattree.closed_form.strategies import estimate
from wattree.cost.families import software_family
from wattree.lowering.movement import bucket_bytes, parameter_bucket_bytes
from wattree.predict import predicted
from wattree.strategy import Offload, Prefetch, StrategyOptions, Traffic

FSDP = {"dp": 8, "sharding": "zero3"}
CASES = {
    "gradients in line": (Traffic(in_line=("gradients",)), {"dp": 8}),
    "parameters in line": (Traffic(in_line=("parameters",)), FSDP),
    "tensor in line": (Traffic(in_line=("tensor",)), {"dp": 2, "tp": 4}),
    "context in line": (Traffic(in_line=("context",)), {"dp": 2, "cp": 4}),
    "transfers in line": (Traffic(overlap_pipeline=False), {"dp": 2, "pp": 4}),
    "no prefetch": (Traffic(prefetch=Prefetch(forward=0, backward=0)), FSDP),
    "no prefetch in forward": (Traffic(prefetch=Prefetch(forward=0)), FSDP),
    "deep prefetch": (Traffic(prefetch=Prefetch(forward=3, backward=3)), FSDP),
    "kept parameters": (Traffic(reshard_after_forward=False), FSDP),
    "reductions at the end": (
        Traffic(reduce_every_micro_batch=False, overlap_gradients=False),
        {"dp": 4, "pp": 2, "sharding": "zero3"},
    ),
    "larger buckets": (Traffic(gradient_bucket_bytes=1e9), {"dp": 8}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_closed_form_follows_the_setting(name: str) -> None:
    """The change that a setting makes is seen by both, within what they differ by anyway."""
    traffic, degrees = CASES[name]
    job = setting(model="llama-3.1-8b", batch=32)
    options = StrategyOptions(traffic=traffic, **degrees)  # type: ignore[arg-type]

    executed = predicted(job, options, detail=False)
    screened = estimate(job, options, Degrees.of([options], 32))

    assert is_expressible(options, job.job.cluster)
    assert screened.step_time_s[0] == pytest.approx(executed.result.step_time_s, rel=0.08)
    assert screened.tensor_bytes[0] == pytest.approx(executed.peak.tensors, rel=0.08)


def test_strategies_with_and_without_pipelines_are_estimated_as_each_alone() -> None:
    """In pipelines, this software moves gradients in another way."""
    job = replace(setting(model="llama-3.1-8b", batch=32), software=software_family("torchtitan"))
    many = [StrategyOptions(sharding="zero2", dp=dp, pp=pp) for dp, pp in ((8, 1), (4, 2), (2, 1))]
    together = estimate(job, many[0], Degrees.of(many, 32))
    alone = [estimate(job, each) for each in many]

    for name in ("step_time_s", "tensor_bytes", "process_bytes", "energy_j"):
        found = [getattr(each, name)[0] for each in alone]
        np.testing.assert_allclose(getattr(together, name), found)


def test_what_the_closed_form_does_not_know_is_said() -> None:
    """Whoever screens must ask."""
    unknown = (Traffic(overlap_optimizer=True), Traffic(offload=Offload(optimizer="host")))

    cluster = setting().job.cluster

    assert not any(is_expressible(StrategyOptions(traffic=each), cluster) for each in unknown)


def test_prefetch_written_out_is_what_the_software_does_anyway() -> None:
    """Estimate and simulation resolve it alike: software that overlaps no parameters has none."""
    job = setting(model="gpt2-xl", batch=32, software="megatron-lm-2021")
    written_out = Traffic(prefetch=Prefetch(forward=0, backward=0))
    options = [
        StrategyOptions(dp=8, sharding="zero3", recompute="full", traffic=traffic)
        for traffic in (Traffic(), written_out)
    ]

    found = [estimate(job, each, Degrees.of([each], 32)).tensor_bytes[0] for each in options]

    assert found[0] == found[1]
    assert found[0] == pytest.approx(predicted(job, options[0]).peak.tensors, rel=1e-3)


@pytest.mark.parametrize(
    ("family", "given", "replicas", "megabytes", "of_parameters"),
    [
        ("megatron-lm", None, 8, 160, 80),  # 40 million gradients in fp32
        ("megatron-lm", None, 256, 1024, 512),
        ("megatron-core", None, 256, 512, 512),  # in 16 bits
        ("megatron-lm", 1e6, 256, 1, 0.5),
        ("deepspeed", None, 8, 1000, 1000),
        ("deepspeed", 1e6, 8, 1, 1000),  # each has a setting of its own
        ("pytorch", None, 256, 25 * 1.048576, 0),
    ],
)
def test_buckets_grow_with_the_replicas_of_megatron(
    family: str, given: float | None, replicas: int, megabytes: float, of_parameters: float
) -> None:
    """`bucket_size = max(40000000, 1000000 * dp_size)`, unless the job says otherwise."""
    scale: Any = SimpleNamespace(
        batch_axes=("dp",), context_axes=("cp",), degree=lambda _: np.array([float(replicas)])
    )
    known = Traffic(gradient_bucket_bytes=given), software_family(family), scale
    assert bucket_bytes(*known) == pytest.approx([megabytes * 1e6])
    assert parameter_bucket_bytes(*known) == pytest.approx([of_parameters * 1e6])


def test_updated_parameters_return_in_buckets() -> None:
    """Between many nodes, gathers of each block's are slower: each has the latency of a ring."""
    job = setting(
        model="llama-3.1-8b", batch=4096, node="dgx-h100", nodes=256, software="megatron-core"
    )
    executed, screened = [], []
    for traffic in (Traffic(), Traffic(parameter_bucket_bytes=1.0)):
        options = StrategyOptions(dp=2048, sharding="zero1", traffic=traffic)
        executed.append(predicted(job, options, detail=False).result.step_time_s)
        screened.append(estimate(job, options, Degrees.of([options], 4096)).step_time_s[0])

    assert executed[1] > 1.2 * executed[0]
    assert screened == pytest.approx(executed, rel=0.08)
