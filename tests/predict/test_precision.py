"""States by precision: nothing is kept twice without mixed precision."""

from __future__ import annotations

import pytest

from wattree import job_from_mapping, simulate
from wattree.cost import at_precision, software_family
from wattree.errors import JobError
from wattree.hardware import Precision


@pytest.mark.parametrize(
    ("precision", "bytes_per_parameter"),
    [
        (Precision.FP32, 4 + 4 + 8),  # parameter, gradient, two moments
        (Precision.TF32, 4 + 4 + 8),
        (Precision.BF16, 2 + 2 + 4 + 8),  # and an fp32 master copy
        (Precision.FP16, 2 + 2 + 4 + 8),
        (Precision.FP8, 2 + 2 + 4 + 8),  # weights stay 16-bit, casts are made on the way
    ],
)
def test_states_take_what_their_precision_needs(
    precision: Precision, bytes_per_parameter: float
) -> None:
    """Rajbhandari et al. (ZeRO, 2020, section 3.1) count 16 B for fp32 and for mixed precision.

    Megatron-Core keeps gradients in 16 bits, as NeMo runs it, which makes mixed precision 16 B.
    """
    software = at_precision(software_family("megatron-core"), precision)
    moments_bytes = 8.0
    found = software.parameter_bytes + software.gradient_bytes + software.master_bytes

    assert found + moments_bytes == bytes_per_parameter


@pytest.mark.parametrize(
    ("model", "precision", "node", "notes"),
    [
        ("resnet-18", "fp32", "dgx-a100", 1),
        ("resnet-18", "tf32", "dgx-a100", 0),
        ("resnet-18", "fp32", "dgx-1", 0),  # V100 has no TF32
        ("vit-b-16", "fp32", "dgx-a100", 0),  # one convolution, of patches
    ],
)
@pytest.mark.parametrize("software", ["pytorch", "auto"])
def test_convolutions_of_fp32_run_in_tf32(
    model: str, precision: str, node: str, notes: int, software: str
) -> None:
    """Where devices have it, a job says no more than fp32, and its script does not turn it off."""
    job = {
        "model": model,
        "data": {"global_batch": 512},
        "precision": precision,
        "software": software,
        "cluster": {"node": node},
        "strategy": {"preset": "ddp"},
    }
    result = simulate(job_from_mapping(job, "job.yaml")).result
    off = job | {"traits": {"tf32_convolutions": False}}
    plain = simulate(job_from_mapping(off, "job.yaml")).result

    assert sum("convolutions multiply in TF32" in line for line in result.assumed) == notes
    assert not any("TF32" in line for line in plain.assumed)
    assert (result.step_time_s < 0.95 * plain.step_time_s) == (notes > 0)
    assert (result.mfu_precision, plain.mfu_precision) == (
        "tf32" if notes else precision,
        precision,
    )
    if notes:  # in the same units, a FLOP takes as much
        wide = simulate(job_from_mapping(job | {"precision": "tf32"}, "job.yaml")).result
        assert result.average_power_w == pytest.approx(wide.average_power_w, rel=0.01)


@pytest.mark.parametrize(("precision", "notes"), [("bf16", 1), ("fp32", 0)])
def test_widths_of_gradients_are_assumed_only_where_software_decides(
    precision: str, notes: int
) -> None:
    """In fp32 they have four bytes, whatever recipes do."""
    job = {
        "model": "gpt2",
        "data": {"global_batch": 8, "sequence_length": 128},
        "precision": precision,
        "software": "megatron-core",
        "cluster": {"node": "dgx-a100"},
        "strategy": {"dp": 8},
    }
    assumed = simulate(job_from_mapping(job, "job.yaml")).result.assumed

    assert sum("gradient_bytes" in line for line in assumed) == notes


def test_attention_above_the_peak_is_explained() -> None:
    """Of a transformer in fp32 with long samples; it has no convolutions."""
    job = {
        "model": "llama-3.2-1b",
        "data": {"global_batch": 8, "sequence_length": 65536},
        "precision": "fp32",
        "software": "pytorch",
        "cluster": {"node": "dgx-a100"},
        "strategy": {"dp": 8, "sharding": "zero3", "recompute": "full"},
    }
    result = simulate(job_from_mapping(job, "job.yaml")).result

    assert result.hfu > 1.0
    (why,) = (line for line in result.assumed if "peak" in line)
    assert why.startswith("HFU is of the fp32 peak, which attention exceeds")


def test_autocast_runs_on_devices_without_16_bit_units() -> None:
    """`cublasGemmEx` multiplies fp16 in fp32 there, and moves half of the bytes; it was refused."""
    job = {
        "model": "vgg-16",
        "data": {"global_batch": 16},
        "software": "pytorch",
        "cluster": {"node": "workstation-gtx-1080-ti"},
        "strategy": {"micro_batch": 16},
    }
    found = {
        precision: simulate(job_from_mapping({**job, "precision": precision}))
        for precision in ("fp32", "amp", "bf16")
    }
    step_s = {precision: each.result.step_time_s for precision, each in found.items()}

    assert 0.5 * step_s["fp32"] < step_s["amp"] < step_s["fp32"]
    assert not found["amp"].warnings
    assert "emulate slowly; it is predicted as fp32" in found["bf16"].warnings[0]
    assert job_from_mapping(job).precision == "fp32"  # by default
    kepler = {**job, "precision": "fp16", "cluster": {"node": "p2.8xlarge"}}
    with pytest.raises(JobError, match=r"k80 has no (fp16|bf16)"):
        simulate(job_from_mapping(kepler))
