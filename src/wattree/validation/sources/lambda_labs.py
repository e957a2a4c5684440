"""Lambda's deep-learning-benchmark: NVIDIA's PyTorch examples on single machines.

Its scripts (github:lambdal/deeplearning-benchmark, pytorch/scripts) train on synthetic images,
leave the layout at PyTorch's default, and set `NCCL_P2P_DISABLE=1`.
"""

from __future__ import annotations

from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.networks import row_network
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import replicas_job

_SSD_SIZE = 300


@SOURCES.register("lambda-dl-benchmark")
def express(cells: Cells) -> Job:
    """Return a row of ResNet-50 or SSD300 as a job."""
    cells.assume("layout not stated: NCHW; SGD with momentum (the repository's scripts)")
    return replicas_job(
        cells,
        model=row_network(cells, size=_SSD_SIZE if cells.row.model_name == "ssd" else None),
        cluster=row_cluster(cells, through_host=True),
        software="pytorch-ngc",
        optimizer="momentum",
        traits={"channels_last": False},
    )
