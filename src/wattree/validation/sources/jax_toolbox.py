"""NVIDIA JAX-Toolbox: ViT in T5X on a DGX A100."""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import replicas_job


@SOURCES.register("jax-toolbox-vit")
def express(cells: Cells) -> Job:
    """Return a row of the ViT tables as a job."""
    cells.assume("optimizer not stated: AdamW")
    return replicas_job(
        cells,
        software="jax",
        optimizer="adamw",
    )
