"""NVIDIA DGX Cloud Benchmarking: NeMo (Megatron-Core) and MaxText on H100."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy


@SOURCES.register("dgxc-benchmarking")
def express(cells: Cells) -> Job:
    """Return a row of the release tables as a job."""
    software = cells.row.software
    if software == "MaxText":
        return _maxtext(cells)
    if software == "NeMo/Megatron-Core":
        return _nemo(cells)
    raise cells.refusal(f"unknown software '{software}' of this source")


def _nemo(cells: Cells) -> Job:
    """Distributed optimizer with both halves overlapped, fused attention, no recomputation."""
    row = cells.row
    if row.n_experts is not None and row.n_experts > 1:
        raise cells.refusal("mixture-of-experts rows of this source lack their shape")
    is_340b = (row.model_name or "") == "Nemotron-4 340B"
    degrees = cells.degrees(
        vp=12 if is_340b else 1,
        why_vp="as printed in the next release" if is_340b else "no interleaving",
    )
    cells.assume("distributed optimizer; fp32 reduce-scatter and bf16 all-gather overlapped")
    cells.assume("no recomputation")
    if degrees.tp > 1:
        cells.assume("sequence parallel and communication overlap with tensor parallel")
    if degrees.cp > 1:
        cells.assume("context parallel passes keys and values around a ring")
    return row_job(
        cells,
        strategy=row_strategy(
            cells,
            degrees,
            sharding="zero1",
            sequence_parallel=degrees.tp > 1,
        ),
        software="megatron-core",
    )


def _maxtext(cells: Cells) -> Job:
    """FSDP over at most 128 devices, data parallel beyond; remat_policy=save_qkv_proj.

    The policy is set in the publisher's own maxtext/configure.sh and not printed in the tables.
    """
    row = cells.row
    degrees = cells.degrees()
    shard = row.fsdp_shard or degrees.dp
    if degrees.dp % shard:
        raise cells.refusal(f"{degrees.dp} replicas do not divide into shards of {shard}")
    hybrid = shard < degrees.dp
    cells.assume(
        "recomputation not printed: save_qkv_proj keeps only the query, key and value products "
        "(github:NVIDIA/dgxc-benchmarking maxtext/configure.sh)"
    )
    return row_job(
        cells,
        strategy=row_strategy(
            cells,
            degrees,
            dp=degrees.dp // shard if hybrid else degrees.dp,
            fsdp=shard if hybrid else 1,
            sharding="hybrid" if hybrid else "zero3",
            recompute="selective_qkv",
        ),
        software="maxtext",
    )
