"""`precision: amp`: fp16 matmuls and fp32 parameters."""

from __future__ import annotations

import pytest

from wattree.cost import AUTOCAST, at_precision, matrix_precision, software_family
from wattree.errors import WattreeError
from wattree.hardware import Precision
from wattree.job import job_from_mapping
from wattree.predict import simulate

JOB = {
    "model": "bert-base",
    "data": {"sequence_length": 512, "global_batch": 64},
    "optimizer": "adamw",
    "software": "pytorch",
    "cluster": {"node": "dgx-a100", "nodes": 1},
    "strategy": {"preset": "ddp", "dp": 8, "micro_batch": 8},
}


def test_amp_keeps_parameters_and_gradients_in_fp32_and_scales_them() -> None:
    """No master copy: the parameters are it."""
    habits = at_precision(software_family("megatron-core"), AUTOCAST)
    kept = (habits.parameter_bytes, habits.master_bytes, habits.gradient_bytes, habits.reduce_bytes)
    assert kept == (4.0, 0.0, 4.0, 4.0)
    assert habits.autocast
    assert habits.loss_scaling
    assert matrix_precision(AUTOCAST) is Precision.FP16


@pytest.mark.parametrize(
    ("precision", "scaled"), [("fp16", True), ("bf16", False), ("tf32", False)]
)
def test_autocast_families_scale_losses_where_fp16_needs_it(
    precision: str, *, scaled: bool
) -> None:
    """bf16 has the range of fp32; without mixed precision nothing is cast."""
    habits = at_precision(software_family("pytorch"), precision)
    assert habits.loss_scaling is scaled
    assert habits.autocast is (precision != "tf32")


def test_a_job_at_amp_is_faster_than_at_fp32_and_reports_fp16() -> None:
    """The same job at three precisions."""
    steps = {
        name: simulate(job_from_mapping(JOB | {"precision": name})).result
        for name in ("amp", "tf32", "fp32")
    }
    assert steps["amp"].step_time_s < steps["tf32"].step_time_s < steps["fp32"].step_time_s
    assert steps["amp"].mfu_precision == "fp16"


def test_an_unknown_precision_names_amp_among_the_known() -> None:
    """A slip is answered with what there is."""
    with pytest.raises(WattreeError, match="amp"):
        job_from_mapping(JOB | {"precision": "ampp"})
