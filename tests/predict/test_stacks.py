"""What frameworks and compilers of networks do: MXNet, XLA on TPUs, PyTorch with CUDA 10."""

from __future__ import annotations

from typing import Any

import pytest

from wattree import job_from_mapping, simulate
from wattree.closed_form.degrees import Degrees
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.errors import WattreeError
from wattree.job import Job
from wattree.predict import setting_of
from wattree.strategy import StrategyOptions
from wattree.trace import Result


def job(node: str, *, model: str = "resnet-50", samples: int = 256, **given: Any) -> Job:
    """Return a step on one device of a node."""
    return job_from_mapping(
        {
            "model": model,
            "data": {"global_batch": samples},
            "optimizer": "lars",
            "cluster": {"node": node},
            "place": {"devices": "0"},
            "strategy": {"dp": 1, "micro_batch": samples, "sharding": "none", "recompute": "none"},
            **given,
        }
    )


def step(node: str, **given: Any) -> Result:
    """Return what is predicted of it."""
    return simulate(job(node, **given)).result


def test_mxnet_fuses_norms_and_keeps_fp32_weights_in_the_optimizer_alone() -> None:
    """`--fuse-bn-add-relu`, and `multi_precision`: 2 B of weights, and 4 + 4 B of its state."""
    found = step("dgx-a100", precision="fp16", software="mxnet")
    eager = step("dgx-a100", precision="fp16", software="pytorch-ngc")
    held = found.memory.by_category

    assert 0.7 < found.step_time_s / eager.step_time_s < 0.9
    assert held["optimizer"] / held["parameters"] == pytest.approx(4.0)


def test_tpus_multiply_fp32_as_bf16_and_hold_it_in_fp32() -> None:
    """`jax.lax.Precision.DEFAULT`: one pass of the same rate, twice the bytes."""
    wide, narrow = (
        step("tpu-v3-host", precision=each, software="jax").step_time_s for each in ("fp32", "bf16")
    )
    assert 1.0 < wide / narrow < 2.0
    with pytest.raises(WattreeError, match="tpu-v3 has no tf32 matrix rate"):
        step("tpu-v3-host", precision="tf32", software="jax")


def test_tpus_multiply_in_int8_at_their_own_rate() -> None:
    """918 TOPS of a v5p, twice its bf16; linear layers alone, as AQT quantizes them."""
    given: dict[str, Any] = {"model": "llama-3.2-1b", "samples": 4, "software": "maxtext"}
    given |= {"data": {"sequence_length": 4096, "global_batch": 4}, "optimizer": "adamw"}
    narrow, wide = (step("tpu-v5p-host", precision=each, **given) for each in ("int8", "bf16"))

    assert 0.5 < narrow.step_time_s / wide.step_time_s < 0.9
    with pytest.raises(WattreeError, match="has no int8 matrix rate"):
        step("dgx-h100", precision="int8", **given)


@pytest.mark.parametrize(("node", "blocks"), [("dgx-a100", True), ("8x-gaudi2", False)])
def test_only_gpus_have_launches_that_block(node: str, *, blocks: bool) -> None:
    """`CUDA_LAUNCH_BLOCKING`, which Megatron-DeepSpeed's recipes set."""
    data = {"sequence_length": 1024, "global_batch": 8}
    given = {"software": "megatron-deepspeed", "optimizer": "adamw", "data": data}

    found = setting_of(job(node, model="gpt2", samples=8, **given), load_calibration())

    assert found.software.launch_blocking is blocks


@pytest.mark.parametrize("node", ["tpu-v3-host", "8x-gaudi2"])
def test_compilers_of_accelerators_merge_convolutions_with_norms(node: str) -> None:
    """Unless the job says otherwise, and on no GPU of the same software."""
    given: dict[str, Any] = {"precision": "bf16", "software": "jax"}
    merged = step(node, **given).step_time_s
    apart = step(node, **given, traits={"fused_convolutions": False}).step_time_s

    assert 1.1 < apart / merged < 1.6


@pytest.mark.parametrize(
    ("node", "released", "slow"),
    [
        ("dgx-1-32gb", "2022-01", True),
        ("dgx-a100", "2022-01", False),
        ("dgx-1-32gb", "2023-06", False),
    ],
)
def test_scores_of_odd_size_miss_the_matrix_units_of_volta_with_cuda_10(
    node: str, released: str, *, slow: bool
) -> None:
    """CuBLAS before 11 needs multiples of 8, not 197. Ampere needs CUDA 11, PyTorch 2 has it."""
    asked = job(node, model="deit-base", samples=16, precision="amp", released=released)
    options, shipped = asked.strategy, load_calibration()
    assert isinstance(options, StrategyOptions)
    degrees = Degrees.of([options], 16)
    one, five = (
        estimate(
            setting_of(asked, shipped.replaced({"general.key_misalignment": each})),
            options,
            degrees,
        ).step_time_s[0]
        for each in (1.0, 5.0)
    )
    assert bool(five > one) is slow
