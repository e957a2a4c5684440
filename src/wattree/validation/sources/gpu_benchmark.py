"""pytorch-gpu-benchmark: forward and backward of torchvision's models, 12 samples per device."""

from __future__ import annotations

from typing import Any

from wattree.cost.loading import Loader
from wattree.job import Job
from wattree.validation.cells import Cells
from wattree.validation.sources.registry import SOURCES
from wattree.validation.sources.replicas import replicas_job

#: Of its data loader, and of one image.
_WORKERS, _VALUES = 8, 3 * 224 * 224
#: `model.half()`: everything in 16 bits, nothing kept besides it.
_PURE_HALF: dict[str, Any] = {
    "autocast": False,
    "parameter_bytes": 2.0,
    "gradient_bytes": 2.0,
    "gather_bytes": 2.0,
    "reduce_bytes": 2.0,
}


@SOURCES.register("pytorch-gpu-benchmark")
def express(cells: Cells) -> Job:
    """Return a row of the result files as a job."""
    printed, devices = str(cells.row.precision), cells.whole("n_accel")
    half = "pure half" in printed
    cells.assume("images copied from pageable memory within the step (the source's code)")
    cells.assume("no optimizer step in the source: counted as plain SGD, the cheapest")
    return replicas_job(
        cells,
        software="pytorch",
        optimizer="sgd",
        loader=Loader(
            workers=_WORKERS, tensor_bytes=_VALUES * (2.0 if half else 4.0), pinned=False
        ),
        options={"single_process": devices > 1},
        traits={"earlier_host": True, **(_PURE_HALF if half else {})},  # PyTorch 1.4 and 1.7
    )
