"""IBM fms-fsdp: compiled PyTorch FSDP, 128 A100."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import Adapters, row_cluster
from wattree.validation.shapes import row_model
from wattree.validation.sources.registry import SOURCES, row_job, row_strategy

_ETHERNET = Adapters(count=4, gbit_per_s=100, source="printed: 400 Gbit/s per node")
#: Parameters [1e9] up to which `selective` is read as every third block; every block above.
_THIRD_OF_BLOCKS_UP_TO_B = 20.0


@SOURCES.register("fms-fsdp")
def express(cells: Cells) -> Job:
    """Return a row of the repository's table as a job."""
    row = cells.row
    cells.need("sharding", "recompute", "n_params_b")
    degrees = cells.degrees()
    hybrid = row.sharding == "HSDP"
    shard = cells.whole("accel_per_node") if hybrid else 1
    if hybrid:
        cells.assume(f"HSDP shards inside a node ({shard}) and replicates over nodes")
    return row_job(
        cells,
        model=row_model(cells),
        cluster=row_cluster(cells, adapters=_ETHERNET),
        strategy=row_strategy(
            cells,
            degrees,
            dp=degrees.dp // shard,
            fsdp=shard,
            sharding="hybrid" if hybrid else "zero3",
            recompute=_recompute(cells),
        ),
        software="pytorch-fsdp-compiled",
    )


def _recompute(cells: Cells) -> str:
    """`selective` recomputes a share of the blocks; the share is not printed."""
    if cells.row.recompute != "selective":
        return str(cells.row.recompute)
    small = (cells.row.n_params_b or 0.0) <= _THIRD_OF_BLOCKS_UP_TO_B
    cells.assume(f"share of recomputed blocks not stated: {'one third' if small else 'all'}")
    return "block_3" if small else "full"
