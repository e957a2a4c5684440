"""What a row measured: which quantity, in which unit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wattree.validation.measurement import RowMeasurement, measurement, power_scope
from wattree.validation.rows import MeasuredRow

ROW = MeasuredRow(
    row_id="A1",
    source_id="mine",
    source_ref="notebook",
    accelerator="H100-SXM",
    n_accel=8,
    software="torchtitan",
    primary_metric="tokens_per_s",
    core=True,
)


def test_a_printed_step_time_goes_before_a_derived_one() -> None:
    """The derived one carries the rounding of the throughput it comes from."""
    found = measurement(replace(ROW, step_time_s=2.0, implied_step_time_s=2.1))

    assert found == RowMeasurement(quantity="step_time_s", value=2.0)


def test_a_throughput_is_compared_as_the_step_time_it_implies() -> None:
    """One quantity for speed in whatever form it was printed."""
    assert measurement(replace(ROW, implied_step_time_s=2.1)).value == 2.1


def test_figures_of_a_row_that_contradict_each_other_are_no_measurement() -> None:
    """Rounding explains some percent; a wrong batch or number of devices explains more."""
    row = replace(ROW, step_time_s=1.0, global_batch=4, seq_len=1000, tokens_per_s=4100.0)

    assert measurement(replace(row, tokens_per_s_per_gpu=500.0)).value == 1.0
    assert measurement(replace(row, tokens_per_s_per_gpu=4000.0)) == RowMeasurement(
        quantity="step_time_s",
        value=None,
        reason="figures contradict each other: by tokens_per_s_per_gpu a step takes 0.125 s, by "
        "step_time_s 1 s",
    )


def test_a_row_without_a_time_says_why_it_has_none() -> None:
    """The row is reported as skipped, not dropped."""
    found = measurement(ROW)

    assert (found.value, found.reason) == (
        None,
        "no measured value in step_time_s and implied_step_time_s",
    )


@pytest.mark.parametrize(
    ("mem_kind", "value_bytes", "memory_kind"),
    [
        ("peak reserved GiB, max over ranks", 10 * 2**30, "reserved"),
        ("measured allocated GiB (max over ranks)", 10 * 2**30, "allocated"),
        ("per GPU, GB, nvidia-smi style rounded", 10_000 * 2**20, "process"),
        ("allocated, GB", 10e9, "allocated"),
        ("peak over all ranks", 10 * 2**30, "allocated"),
    ],
)
def test_the_unit_and_kind_of_memory_are_those_of_the_row(
    mem_kind: str, value_bytes: float, memory_kind: str
) -> None:
    """GB and GiB differ by 7 %, allocated and process by up to 10 GiB."""
    row = replace(ROW, primary_metric="mem_gib_per_gpu", mem_gib_per_gpu=10.0, mem_kind=mem_kind)
    found = measurement(row)

    assert (found.quantity, found.value, found.memory_kind) == (
        "peak_memory_bytes",
        value_bytes,
        memory_kind,
    )


def test_a_run_out_of_memory_measures_nothing() -> None:
    """It only says that the peak was above the capacity."""
    row = replace(ROW, primary_metric="mem_gib_per_gpu", mem_kind="OOM (16 GB device)")

    assert measurement(row).reason == "ran out of memory: OOM (16 GB device)"


def test_energy_is_in_joules() -> None:
    """1 kWh is 3.6 MJ."""
    row = replace(ROW, primary_metric="energy_kwh", energy_kwh=2.0)

    assert measurement(row).value == 7.2e6


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        ("gpu", "device"),
        ("GPU board (NVML), average over one epoch", "device"),
        ("node", "node"),
        ("sum over 8 of 8 nodes, node DC readings", "nodes"),
        ("sum over 2 of 8 nodes", None),
        ("cluster", "cluster"),
        ("gpus", None),
        ("per GPU", "device"),
        (" one node", "node"),
        ("GPU total of 8", None),
        ("cluster without switches", None),
        (None, None),
    ],
)
def test_power_without_a_known_scope_is_no_measurement(
    words: str | None, scope: str | None
) -> None:
    """Of a device, a node and a cluster it differs by orders of magnitude."""
    row = replace(ROW, primary_metric="avg_power_w", avg_power_w=620.0, power_scope=words)

    assert power_scope(row) == scope
    assert measurement(row).value == (620.0 if scope else None)


def test_a_measured_zero_is_no_measurement() -> None:
    """An error relative to zero does not exist."""
    assert measurement(replace(ROW, step_time_s=0.0)).reason == "the value in step_time_s is zero"


def test_the_time_of_a_single_layer_is_no_step_time() -> None:
    """It stands in the same column."""
    row = replace(ROW, primary_metric="step_time_s (single layer fwd+bwd)", step_time_s=0.1)

    assert measurement(row).value is None
