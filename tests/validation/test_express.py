"""Rows as jobs: one golden text per source, and what holds for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.each import each
from wattree.capture.mapping import transformer_from_mapping
from wattree.errors import RowError
from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation import express
from wattree.validation.express import Expressed
from wattree.validation.rows import MeasuredRow, bundled_rows, read_rows

#: Of language models; other networks have tests of their own.
ROWS = {row.row_id: row for row in bundled_rows() if not row.row_id.startswith("V")}
CORE = [row for row in ROWS.values() if row.core]


def options(job: Job) -> StrategyOptions:
    """Return the options that every row is expressed with."""
    assert isinstance(job.strategy, StrategyOptions)
    return job.strategy


def model_parameters(job: Job) -> int:
    """Return the parameters of the job's model graph."""
    assert job.model.transformer is not None
    return transformer_from_mapping(job.model.transformer, job.source).parameters


def as_text(expressed: Expressed) -> str:
    """Return a job as lines for a reader; what has its default value is left out."""
    job, row = expressed.job, expressed.row
    assert job.model.transformer is not None
    node = job.cluster.node
    lines = [
        f"{row.row_id} {row.source_id}: {row.model_name}",
        f"  model: {pairs(job.model.transformer)}",
        f"  data: sequence {job.data.sequence_length}, global batch {job.data.global_batch}",
        f"  precision {job.precision}, optimizer {job.optimizer}, software {job.software}",
        f"  cluster: {job.cluster.nodes} x {node.name} with {node.devices} x {node.device.name}",
        f"  network: {node.nics} x {node.nic_bandwidth_bytes_per_s / 1e9:g} GB/s per node",
        f"  scale-up domain: {job.cluster.domain_devices} devices",
        f"  strategy: {pairs(options(job).chosen())}",
        f"  traits: {pairs(job.traits_of(job.software)) or 'none'}",
        *[f"  assumed: {sentence}" for sentence in expressed.assumed],
    ]
    return "\n".join(lines)


def pairs(values: Any) -> str:
    """Return a mapping on one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def first_of_each_source(rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Return the first row of each source and kind of model."""
    found: dict[tuple[str, str | None, str | None], MeasuredRow] = {}
    for row in rows:
        found.setdefault((row.source_id, row.arch_type, row.software), row)
    return list(found.values())


def test_one_row_per_source_reads_as_its_convention_says(golden: Any) -> None:
    """The whole reading of a source on one page, to be compared with the source by a person."""
    chosen = [*first_of_each_source(CORE), *(ROWS[i] for i in ("L0321", "L0322", "L1182", "M0010"))]

    golden.check("expressed.txt", "\n\n".join(as_text(express(row)) for row in chosen) + "\n")


@each("row", CORE, ids=lambda row: row.row_id)
def test_a_core_row_becomes_a_job_on_exactly_its_devices(row: MeasuredRow) -> None:
    """A degree too many or too few would still simulate, and be wrong."""
    job = express(row).job

    assert options(job).ranks == job.cluster.devices == row.n_accel
    assert job.data.global_batch % (options(job).replicas * options(job).pipeline.micro_batch) == 0


@each("row", [row for row in CORE if row.n_params_b is not None], ids=lambda row: row.row_id)
def test_the_model_of_a_row_has_the_stated_parameters(row: MeasuredRow) -> None:
    """2 % covers rounding to two digits; the named rows are wrong in their source."""
    # The source counts a vocabulary of 150k where the model has 250k, and fits whole layers.
    wrong_in_source = {"L0926", "M0001", "M0010"}
    tolerance = 0.2 if row.row_id in wrong_in_source else 0.02

    assert model_parameters(express(row).job) == pytest.approx(
        (row.n_params_b or 0) * 1e9, rel=tolerance
    )


def test_a_stated_cell_leaves_no_assumption() -> None:
    """Only what had to be filled is an assumption."""
    row = ROWS["L0533"]
    stated = express(row).assumed
    unstated = express(replace(row, optimizer=None, dp=None, vp=None)).assumed

    assert "optimizer not stated: adamw" in set(unstated) - set(stated)


def test_experts_spread_over_tensor_ranks_too() -> None:
    """The row's ep 32 spans tp 2, so 16 replicas hold different experts."""
    row = ROWS["L0322"]
    strategy = options(express(row).job)

    assert (row.ep, row.tp, row.dp) == (32, 2, 16)
    assert (strategy.ep, strategy.dp, strategy.parallelism.expert_over_tensor) == (16, 1, True)


def test_maxtext_shards_over_128_devices_and_replicates_beyond() -> None:
    """The tables call it FSDP+DP."""
    row = replace(ROWS["L0637"], n_accel=512, dp=512, global_batch=1024, fsdp_shard=128)
    strategy = options(express(row).job)

    assert (strategy.memory.sharding, strategy.fsdp, strategy.dp) == ("hybrid", 128, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": None, "vocab": None}, "row L0615: not stated: hidden"),
        ({"tp": 3}, "row L0615: tp 3 x pp 4 x cp 2 = 24 does not divide 64 devices"),
        ({"dp": 4}, "row L0615: found dp 4, but 64 devices / 32 give 2"),
        (
            {"global_batch": 129},
            "row L0615: global batch 129 does not split over 2 replicas of micro-batch 1",
        ),
        ({"grad_accum": 7}, "row L0615: found grad_accum 7, but the batch sizes give 64"),
        ({"micro_batch": 0}, "row L0615: column 'micro_batch': found 0, expected 1 or more"),
        ({"precision": "int4"}, "row L0615: no known number format in 'int4'"),
        ({"precision": None}, "row L0615: not stated: precision"),
        ({"accelerator": "X1"}, "row L0615: no catalog device is called X1 with 80 GB"),
        ({"accel_mem_gb": 17.0}, "row L0615: no catalog device is called H100-SXM with 17 GB"),
        ({"arch_type": "moe"}, "row L0615: not stated: n_experts"),
        (
            {"accel_per_node": 99},
            "row L0615: no catalog node holds 99 x h100-sxm-80gb",
        ),
        ({"task": "lora"}, "row L0615: task 'lora' is no plain pre-training"),
        ({"arch_type": "cnn"}, "row L0615: architecture 'cnn' has no expression"),
    ],
)
def test_a_row_that_cannot_be_expressed_says_why(change: dict[str, Any], message: str) -> None:
    """The reason is what `validate` prints for a skipped row."""
    with pytest.raises(RowError) as caught:
        express(replace(ROWS["L0615"], **change))

    assert str(caught.value) == message


def test_a_row_of_an_unknown_source_is_read_as_any_other() -> None:
    """A user's own run needs no file here."""
    expressed = express(replace(ROWS["L0615"], source_id="mine"))

    left = ("sharding", "sequence_parallel", "recompute", "offload", "expert_over_tensor")
    assert expressed.job.left_open[1:] == left
    assert options(expressed.job) == options(express(ROWS["L0615"]).job)


@pytest.mark.parametrize(
    ("change", "assumed"),
    [
        ({"software": "own"}, "software 'own': generic"),
        ({"software": None}, "software not stated: generic"),
        ({"sharding": "some"}, "sharding 'some' not understood: as not stated"),
        ({"recompute": "now and then"}, "recompute 'now and then' not understood: as not stated"),
        ({"micro_batch": None}, "micro_batch not stated: 1"),
        ({"vocab": None}, "vocab not stated: 128256 (that of Llama 3)"),
    ],
)
def test_what_nobody_knows_is_assumed_and_said(change: dict[str, Any], assumed: str) -> None:
    """One odd cell costs no prediction."""
    assert assumed in express(replace(ROWS["L0615"], **change)).assumed


def test_gradients_in_fp32_are_read_from_the_cell_that_says_so() -> None:
    """They take twice the memory and twice the traffic."""
    job = express(replace(ROWS["L0615"], precision="bf16 (fp32 gradient accumulation)")).job

    assert (job.traits["gradient_bytes"], job.traits["reduce_bytes"]) == (4.0, 4.0)


def test_software_is_that_of_the_rows_words_and_year() -> None:
    """Publications of 2022 and of today write `Megatron-LM` alike."""
    changes = (
        ("HF Trainer + DeepSpeed", None),
        ("Megatron-LM", "2022-05"),
        ("Megatron-LM", "2025"),
    )
    jobs = [
        express(replace(ROWS["L0615"], source_id="mine", software=software, source_date=date)).job
        for software, date in changes
    ]

    assert [job.software for job in jobs] == ["hf-trainer", "megatron-lm-2021", "megatron-lm"]


@pytest.mark.parametrize(("name", "count"), [("throughput_llm", 455), ("memory", 93)])
def test_every_published_core_row_is_expressed(shared: Path, name: str, count: int) -> None:
    """Coverage of the accuracy figures begins here."""
    rows = [row for row in read_rows(shared / "measured" / f"{name}.csv") if row.core]
    jobs = [express(row).job for row in rows]

    assert len(jobs) == count
    assert all(
        options(job).ranks == job.cluster.devices == row.n_accel
        for job, row in zip(jobs, rows, strict=True)
    )


COLUMNS = {field.name: str(field.type) for field in fields(MeasuredRow)}
CELLS = {
    "int": st.sampled_from([0, 1, 2, 3, 7, 8, 64, 1000, 10**12]),
    "float": st.sampled_from([0.0, 1e-9, 0.5, 16.0, 1e12]),
    "bool": st.booleans(),
    "str": st.sampled_from(["", "none", "full", "FSDP", "HSDP", "fp8", "bf16", "NeMo", "x"]),
}


@st.composite
def damaged_rows(draw: st.DrawFn) -> MeasuredRow:
    """Return a core row with up to four cells emptied or replaced by anything of their type."""
    row = draw(st.sampled_from(CORE))
    columns = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=4))
    for column in columns:
        kind = COLUMNS[column].split(" ")[0]
        cell = CELLS[kind] if "None" not in COLUMNS[column] else st.none() | CELLS[kind]
        row = replace(row, **{column: draw(cell)})
    return row


@given(row=damaged_rows())
def test_a_damaged_row_is_expressed_on_its_devices_or_refused(row: MeasuredRow) -> None:
    """Zero degrees, odd batches, absurd sizes: a reason, never a traceback or another cluster."""
    try:
        job = express(row).job
    except RowError:
        return
    assert options(job).ranks == job.cluster.devices == row.n_accel


def test_recipes_of_experts_are_read_as_their_release_has_them() -> None:
    """Megatron-Bridge's tables leave out what dispatches tokens and what graphs replay."""
    graphed = {"moe_dispatch": "hybridep", "moe_fused_experts": True, "quantized_attention": True}
    graphed |= {"cuda_graphs": "full", "moe_overlap": True}
    newest = ROWS["L0224"]

    earlier = replace(newest, software_version="26.02 NeMo Container")
    other = replace(newest, model_name="Qwen4-1B")
    found = [express(row).job.traits for row in (newest, earlier, other, ROWS["L0266"])]

    by_router = {"moe_dispatch": "hybridep", "cuda_graphs": "router"}
    assert found == [graphed, by_router, {}, {"moe_dispatch": "hybridep", "cuda_graphs": "none"}]


def test_scripts_of_a_release_say_what_its_tables_leave_out() -> None:
    """Of dgxc-benchmarking: kernels of attention, what backward has, and when it was."""
    rows = [row for row in CORE if row.source_id == "dgxc-benchmarking"]
    found = {row.row_id: express(row).job for row in rows}

    assert {job.released for job in found.values()} <= {"2024-11", "2025-02", "2025-04", "2025-05"}
    by_xla = [row.row_id for row in rows if row.software == "MaxText"]
    assert all("recompute" not in found[name].left_open for name in by_xla)
