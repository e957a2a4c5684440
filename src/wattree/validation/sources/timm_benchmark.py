"""timm's training benchmark: one RTX 3090, synthetic images, AMP, both layouts."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import replicas_job


@SOURCES.register("timm-rtx3090")
def express(cells: Cells) -> Job:
    """Return a row of `benchmark-train-amp-*.csv` as a job."""
    cells.assume("optimizer not stated: SGD with momentum, the default of benchmark.py")
    return replicas_job(
        cells,
        software="pytorch",
        optimizer="momentum",
        traits={
            "channels_last": "(nhwc)" in str(cells.row.precision),
            "fused_attention": False,  # PyTorch 1.12
            "earlier_host": True,
        },
    )
