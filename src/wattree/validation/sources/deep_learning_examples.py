"""NVIDIA DeepLearningExamples: ResNet-50, EfficientNet, NCF and DLRM on DGX systems.

What tables do not print stands in the repository beside them: batches, layouts and optimisers in
`ConvNets/configs.yml`, for other examples in their scripts and documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattree.errors import RowError
from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.networks import row_network
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import is_mixed, replicas_job

__all__ = ["convnets", "efficientnet", "ncf", "paddle", "tensorflow"]

#: Samples per device of EfficientNet-b4 in `configs.yml`, by memory [GB] and 16 bits or not.
_B4_SAMPLES: Mapping[tuple[float, bool], int] = {
    (16, True): 32,
    (16, False): 16,
    (32, True): 64,
    (32, False): 32,
    (80, True): 128,
    (80, False): 64,
}
_PADDLE_SAMPLES = 256


@SOURCES.register("nv-dle-pytorch-convnets")
def convnets(cells: Cells) -> Job:
    """Return a row of ResNet-50 in PyTorch as a job."""
    return _pytorch(cells, optimizer="momentum")


@SOURCES.register("nv-dle-pytorch-efficientnet")
def efficientnet(cells: Cells) -> Job:
    """Return a row of EfficientNet in PyTorch as a job."""
    samples = None
    if cells.row.micro_batch is None:
        samples = _B4_SAMPLES.get((cells.row.accel_mem_gb or 0, is_mixed(cells)))
        if samples is None or "b4" not in str(cells.row.model_name):
            raise RowError(f"row {cells.row.row_id}: not stated: micro_batch")
        cells.assume(f"micro_batch not stated: {samples}, as the repository's configs.yml")
    cells.assume("gradients reduced in every pass, not after several")
    return _pytorch(cells, optimizer="rmsprop", micro_batch=samples)


@SOURCES.register("nv-dle-pytorch-ncf")
def ncf(cells: Cells) -> Job:
    """Return a row of NCF as a job."""
    cells.assume("optimizer not stated: Adam, fused, as the repository's ncf.py")
    cells.assume("replicas reduce the gradients of whole tables, as the repository's ncf.py")
    return replicas_job(
        cells,
        model=row_network(cells),
        cluster=row_cluster(cells),
        software="pytorch-ngc",
        optimizer="adam",
    )


@SOURCES.register("nv-dle-tf-rn50")
def tensorflow(cells: Cells) -> Job:
    """Return a row of ResNet-50 in TensorFlow as a job."""
    cells.assume("optimizer not stated: SGD with momentum; Horovod")
    return replicas_job(
        cells,
        model=row_network(cells),
        cluster=row_cluster(cells),
        software="tensorflow-xla",
        optimizer="momentum",
        traits={"channels_last": is_mixed(cells)},
    )


@SOURCES.register("nv-dle-paddle-rn50")
def paddle(cells: Cells) -> Job:
    """Return a row of ResNet-50 in PaddlePaddle as a job."""
    samples = cells.or_assume("micro_batch", _PADDLE_SAMPLES, "as the repository's scripts")
    cells.assume("optimizer not stated: SGD with momentum")
    return replicas_job(
        cells,
        model=row_network(cells),
        cluster=row_cluster(cells),
        software="paddle",
        optimizer="momentum",
        micro_batch=samples,
        traits={"channels_last": is_mixed(cells)},
    )


def _pytorch(cells: Cells, *, optimizer: str, micro_batch: int | None = None) -> Job:
    mixed = is_mixed(cells)
    cells.assume(f"optimizer not stated: {optimizer}, as the repository's configs.yml")
    layout = "NHWC" if mixed else "NCHW"
    cells.assume(f"layout not stated: {layout}, as the repository's configs.yml")
    return replicas_job(
        cells,
        model=row_network(cells),
        cluster=row_cluster(cells),
        software="pytorch-ngc",
        optimizer=optimizer,
        micro_batch=micro_batch,
        traits={"channels_last": mixed},
    )
