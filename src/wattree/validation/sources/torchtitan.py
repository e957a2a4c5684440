"""PyTorch torchtitan: FSDP2 with tensor and context parallelism, A100 (2024-08), H100 (2024-12)."""

from __future__ import annotations

from typing import Any

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import Adapters, row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy

_ASSUMED_A100 = Adapters(count=8, gbit_per_s=200, source="assumed: 25 GB/s per device")
_RDMA_H100 = Adapters(count=8, gbit_per_s=400, source="printed: RDMA 400 Gbit/s per device")
#: `selective` alone is the per-operator kind, the default of the configurations of 2024-12.
_RECOMPUTE = {
    "none": "none",
    "full": "full",
    "selective": "selective_operator",
    "selective (per-op)": "selective_operator",
    "selective (per-layer)": "block_2",
}


@SOURCES.register("torchtitan-2024-08")
def express_2024_08(cells: Cells) -> Job:
    """Return a row of the A100 tables as a job."""
    cells.assume("not compiled")
    return _job(cells, adapters=_ASSUMED_A100, traits={})


@SOURCES.register("torchtitan-2024-12")
def express_2024_12(cells: Cells) -> Job:
    """Return a row of the H100 tables as a job."""
    compiled = "torch.compile" in (cells.row.overlap_fusion or "")
    return _job(cells, adapters=_RDMA_H100, traits={"compiled": True} if compiled else {})


def _job(cells: Cells, *, adapters: Adapters, traits: dict[str, Any]) -> Job:
    row = cells.row
    degrees = cells.degrees()
    recompute = _RECOMPUTE.get(row.recompute or "")
    if recompute is None or degrees.pp > 1:
        raise cells.refusal(f"recompute '{row.recompute}' with pp {degrees.pp} has no expression")
    _note(cells, tp=degrees.tp, cp=degrees.cp, recompute=recompute)
    return row_job(
        cells,
        model=row_model(cells),
        cluster=row_cluster(cells, adapters=adapters),
        strategy=row_strategy(
            cells,
            degrees,
            sharding="zero3",
            sequence_parallel=degrees.tp > 1,
            recompute=recompute,
            overlap_tensor=True if "async TP" in (row.overlap_fusion or "") else None,
        ),
        software="torchtitan",
        traits=traits,
    )


def _note(cells: Cells, *, tp: int, cp: int, recompute: str) -> None:
    cells.assume("parameters gathered in bf16, gradients reduced in fp32")
    if recompute == "selective_operator":
        cells.assume("per-operator recomputation keeps attention and every other product")
    if recompute == "block_2":
        cells.assume("per-layer recomputation takes every second layer whole")
    if tp > 1:
        cells.assume("sequence parallel with tensor parallel")
    if cp > 1:
        cells.assume("context parallel passes keys and values around a ring")
        cells.assume("parameters sharded over data and context ranks together")
