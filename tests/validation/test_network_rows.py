"""Rows of vision and recommendation training as jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from wattree.errors import RowError
from wattree.job import Job
from wattree.lowering.model import model_of
from wattree.strategy import StrategyOptions
from wattree.validation import express
from wattree.validation.express import Expressed
from wattree.validation.measurement import measurement
from wattree.validation.rows import MeasuredRow, bundled_rows, read_rows

#: Core rows that are no plain training of a built-in model, and why.
NOT_EXPRESSED = {"V0002": "task 'finetune' is no plain pre-training"}
ROWS = {row.row_id: row for row in bundled_rows() if row.row_id.startswith("V")}
EXPRESSED = [row for row in ROWS.values() if row.row_id not in NOT_EXPRESSED]


def options(job: Job) -> StrategyOptions:
    """Return the options that every row is expressed with."""
    assert isinstance(job.strategy, StrategyOptions)
    return job.strategy


def as_text(expressed: Expressed) -> str:
    """Return a job as lines for a reader."""
    job, row = expressed.job, expressed.row
    node, strategy, loader = job.cluster.node, options(job), job.data.loader
    options_used = [f"dp {strategy.dp}", f"tables {strategy.parallelism.tables}"]
    options_used += ["single process"] if strategy.parallelism.single_process else []
    loading = "none"
    if loader is not None:
        loading = f"{loader.workers} workers, {loader.core_s * 1e3:g} ms a sample"
        loading += f", {loader.tensor_bytes:g} B" + ("" if loader.pinned else ", pageable")
    lines = [
        f"{row.row_id} {row.source_id}: {row.model_name}",
        f"  model {job.model.name}, global batch {job.data.global_batch}",
        f"  precision {job.precision}, optimizer {job.optimizer}, software {job.software}",
        f"  cluster: {job.cluster.nodes} x {node.name} with {node.devices} x {node.device.name}, "
        f"{node.scale_up.kind} of {node.scale_up.bandwidth_bytes_per_s / 1e9:g} GB/s",
        f"  strategy: {', '.join(options_used)}",
        f"  loading: {loading}",
        f"  traits: {', '.join(f'{k} {v}' for k, v in job.traits.items()) or 'none'}",
        *[f"  assumed: {sentence}" for sentence in expressed.assumed],
    ]
    return "\n".join(lines)


def test_rows_read_as_the_conventions_of_their_sources_say(golden: Any) -> None:
    """The whole reading on one page, to be compared with the sources by a person."""
    golden.check("network_rows.txt", "\n\n".join(as_text(express(r)) for r in EXPRESSED) + "\n")


@each("row", EXPRESSED, ids=lambda row: row.row_id)
def test_a_row_becomes_a_job_on_exactly_its_devices(row: MeasuredRow) -> None:
    """One replica on each, and whole micro-batches."""
    job = express(row).job

    assert options(job).ranks == job.cluster.devices == row.n_accel
    assert job.data.global_batch == options(job).dp * options(job).pipeline.micro_batch


@each("row", [row for row in EXPRESSED if row.n_params_b is not None], ids=lambda row: row.row_id)
def test_the_built_in_model_of_a_row_has_the_stated_parameters(row: MeasuredRow) -> None:
    """Rounding to two digits at most; another network would be off by more."""
    parameters = model_of(express(row).job).parameters

    assert parameters == pytest.approx((row.n_params_b or 0) * 1e9, rel=0.02)


def test_a_rate_of_samples_implies_a_step_time_where_the_source_tells_the_batch() -> None:
    """EfficientNet-b4's tables print samples per second and leave the batch to a file."""
    row = ROWS["V0063"]
    samples = express(row).job.data.global_batch

    assert measurement(row).value is None
    assert row.samples_per_s is not None
    assert measurement(row, samples=samples).value == samples / row.samples_per_s


@pytest.mark.parametrize(
    ("row_id", "change", "message"),
    [
        ("V0022", {"model_name": None}, "row V0022: not stated: model_name"),
        ("V0022", {"image_size": None}, "row V0022: not stated: image_size"),
        (
            "V0284",
            {"image_size": "500"},
            "row V0284: found images of 500 pixels, expected 320 or 380 for the built-in "
            "'efficientnet_b4'",
        ),
        (
            "V0063",
            {"accel_mem_gb": 40.0},
            "row V0063: not stated: micro_batch",
        ),
        (
            "V0022",
            {"global_batch": 300},
            "row V0022: found global_batch 300, but 1 x 256 samples give 256",
        ),
        ("V0022", {"precision": None}, "row V0022: not stated: precision"),
        ("V0022", {"accelerator": "X1"}, "row V0022: no catalog device is called X1 with 80 GB"),
        ("V0002", {}, "row V0002: task 'finetune' is no plain pre-training"),
    ],
)
def test_a_row_that_cannot_be_expressed_says_why(
    row_id: str, change: dict[str, Any], message: str
) -> None:
    """The reason is what `validate` prints for a skipped row."""
    with pytest.raises(RowError) as caught:
        express(replace(ROWS[row_id], **change))

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("printed", "device", "precision"),
    [
        ("fp32/tf32", "A100-SXM", "tf32"),
        ("fp32", "A100-SXM", "fp32"),
        ("tf32", "A100-SXM", "tf32"),
        ("amp", "A100-SXM", "amp"),
        ("fp16 weights and activations (pure half)", "A100-SXM", "fp16"),
        ("fp32 (tf32 may be active on A100)", "V100-SXM2", "fp32"),
    ],
)
def test_fp32_is_tf32_where_the_library_makes_it_so(
    printed: str, device: str, precision: str
) -> None:
    """Ampere's matrix units take fp32 as TF32 by default; older ones have none for it."""
    memory = 80.0 if device == "A100-SXM" else 16.0
    row = replace(
        ROWS["V0544"], precision=printed, accelerator=device, accel_mem_gb=memory, accel_per_node=8
    )

    assert express(row).job.precision == precision


def test_every_published_core_row_is_expressed_but_those_named(shared: Path) -> None:
    """Coverage of the accuracy figures begins here."""
    rows = [r for r in read_rows(shared / "measured" / "throughput_vision_dlrm.csv") if r.core]
    refused = {}
    for row in rows:
        try:
            express(row)
        except RowError as error:
            refused[row.row_id] = str(error).removeprefix(f"row {row.row_id}: ")

    assert len(rows) == 339
    assert refused == NOT_EXPRESSED
