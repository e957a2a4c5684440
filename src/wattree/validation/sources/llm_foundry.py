"""MosaicML llm-foundry: MPT models under Composer's FSDP, A100 and H100."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import Adapters, row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy

#: The A100 tables print their fabric; the H100 tables do not.
_ROCE_A100 = Adapters(count=8, gbit_per_s=200, source="printed: 1600 Gbit/s RoCE per node")


@SOURCES.register("llm-foundry")
def express(cells: Cells) -> Job:
    """Return a row of the benchmarking tables as a job."""
    row = cells.row
    degrees = cells.degrees()
    if degrees.tp * degrees.pp * degrees.cp > 1:
        raise cells.refusal("llm-foundry rows are data parallel only")
    cells.need("recompute")
    if row.recompute not in ("none", "full"):
        raise cells.refusal(f"unknown recompute '{row.recompute}'")
    cells.assume("parameters gathered and gradients reduced in bf16, at every micro-batch")
    cells.assume("flash attention kernels of the Ampere generation, on H100 too")
    return row_job(
        cells,
        model=row_model(cells),
        cluster=row_cluster(cells, adapters=_ROCE_A100 if "A100" in row.accelerator else None),
        strategy=row_strategy(
            cells,
            degrees,
            sharding="zero3",
            recompute=str(row.recompute),
        ),
        software="llm-foundry",
    )
