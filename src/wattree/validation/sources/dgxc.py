"""NVIDIA DGX Cloud Benchmarking: NeMo (Megatron-Core) and MaxText on H100."""

from __future__ import annotations

from wattree.errors import RowError
from wattree.job import Job
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import SOURCES, row_job

__all__ = ["express"]


@SOURCES.register("dgxc-benchmarking")
def express(cells: Cells) -> Job:
    """Return a row of the release tables as a job."""
    software = cells.row.software
    if software == "MaxText":
        return _maxtext(cells)
    if software == "NeMo/Megatron-Core":
        return _nemo(cells)
    raise RowError(f"row {cells.row.row_id}: unknown software '{software}' of this source")


def _nemo(cells: Cells) -> Job:
    """Distributed optimizer with both halves overlapped, fused attention, no recomputation."""
    row = cells.row
    if row.n_experts is not None and row.n_experts > 1:
        raise RowError(f"row {row.row_id}: mixture-of-experts rows of this source lack their shape")
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
        model=row_model(cells),
        cluster=row_cluster(cells),
        strategy=StrategyOptions(
            dp=degrees.dp,
            tp=degrees.tp,
            cp=degrees.cp,
            pp=degrees.pp,
            micro_batch=cells.whole("micro_batch"),
            sharding="zero1",
            sequence_parallel=degrees.tp > 1,
            schedule="interleaved" if degrees.vp > 1 else "1f1b",
            virtual_stages=degrees.vp,
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
        message = f"{degrees.dp} replicas do not divide into shards of {shard}"
        raise RowError(f"row {row.row_id}: {message}")
    hybrid = shard < degrees.dp
    cells.assume(
        "recomputation not printed: save_qkv_proj keeps only the query, key and value products "
        "(github:NVIDIA/dgxc-benchmarking maxtext/configure.sh)"
    )
    return row_job(
        cells,
        model=row_model(cells),
        cluster=row_cluster(cells),
        strategy=StrategyOptions(
            dp=degrees.dp // shard if hybrid else degrees.dp,
            fsdp=shard if hybrid else 1,
            micro_batch=cells.whole("micro_batch"),
            sharding="hybrid" if hybrid else "zero3",
            recompute="selective_qkv",
        ),
        software="maxtext",
    )
