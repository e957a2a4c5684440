"""NVIDIA DeepLearningExamples: ResNet-50 and EfficientNet in PyTorch on DGX systems.

Batches, layouts and optimizers, which tables do not print, are in the same repository's
`ConvNets/configs.yml`. What it says of its other examples is in `stated.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping

from wattree.cost.loading import Loader
from wattree.job import Job
from wattree.job.loader import LOADER_PRESETS
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.networks import row_network
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import is_mixed, replicas_job

#: Samples per device of EfficientNet-b4 in `configs.yml`, by memory [GB] and 16 bits or not.
_B4_SAMPLES: Mapping[tuple[float, bool], int] = {
    (16, True): 32,
    (16, False): 16,
    (32, True): 64,
    (32, False): 32,
    (80, True): 128,
    (80, False): 64,
}
#: Decoding and augmentation, one core. Rows whose devices are fast end at one rate each, whatever
#: the network: 2,470 to 2,512 images/s on one A100 (10 workers: 4.0 ms), 16,400 to 16,700 on eight
#: (80 workers: 4.8 ms), 7,800 to 8,900 on eight V100 (40 cores: 4.5 to 5.1 ms).
_SAMPLE_S = 4.4e-3
_PREFETCH = 4


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
            raise cells.refusal("not stated: micro_batch")
        cells.assume(f"micro_batch not stated: {samples}, as the repository's configs.yml")
    cells.assume("gradients reduced in every pass, not after several")
    return _pytorch(cells, optimizer="rmsprop_momentum", micro_batch=samples)


def _pytorch(cells: Cells, *, optimizer: str, micro_batch: int | None = None) -> Job:
    cells.assume(f"optimizer not stated: {optimizer}, as the repository's configs.yml")
    layout = "NHWC" if is_mixed(cells) else "NCHW"
    cells.assume(f"layout not stated: {layout}, as the repository's configs.yml")
    return replicas_job(
        cells,
        software="pytorch-ngc",
        optimizer=optimizer,
        model=row_network(cells),  # asked before the loader
        cluster=row_cluster(cells),
        micro_batch=micro_batch,
        loader=_loader(cells),
    )


def _loader(cells: Cells) -> Loader:
    """Return PyTorch's own loader of JPEG files, with the workers of the repository's platforms."""
    workers = 10 if cells.row.accelerator == "A100-SXM" else 8
    cells.assume(f"data_backend pytorch with {workers} workers per device (configs.yml)")
    cells.assume(f"{_SAMPLE_S * 1e3:g} ms of a core per image")
    preset = LOADER_PRESETS["imagenet-jpeg"]
    return Loader(
        workers=workers,
        decode_s=_SAMPLE_S,
        sample_bytes=preset["sample_bytes"],
        tensor_bytes=3.0 * int(str(cells.row.image_size)) ** 2,  # uint8, normalized on the device
        prefetch=_PREFETCH,
    )
