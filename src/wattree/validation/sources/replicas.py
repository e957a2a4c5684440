"""Jobs of rows whose model stands whole on every device: what their sources share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wattree.cost import AUTOCAST
from wattree.cost.loading import Loader
from wattree.hardware import Cluster, Precision
from wattree.job import Data, Job, ModelSource
from wattree.strategy import StrategyOptions
from wattree.validation.cells import Cells
from wattree.validation.clusters import row_cluster
from wattree.validation.networks import row_network

#: Samples that lie on the device when a step begins: made there, or copied during the last step.
READY = Loader(workers=1)


def is_mixed(cells: Cells) -> bool:
    """Return whether the row trains in 16 bits, however that is spelled.

    Raises:
        RowError: The precision is not stated or not understood.
    """
    return cells.precision() in (Precision.FP16, Precision.BF16)


def replicas_job(
    cells: Cells,
    *,
    software: str,
    optimizer: str,
    model: ModelSource | None = None,
    cluster: Cluster | None = None,
    micro_batch: int | None = None,
    loader: Loader = READY,
    options: Mapping[str, Any] | None = None,
    traits: Mapping[str, Any] | None = None,
) -> Job:
    """Return the job of a row: each device is a replica, and one step one pass of each.

    Args:
        cells: The row.
        software: Family.
        optimizer: As a job names it.
        model, cluster: None: what the row's own cells say.
        micro_batch: Samples per device; None: as the row says.
        loader: How samples get to the devices, where that is not hidden.
        options: Of the strategy, besides its degree and micro-batch.
        traits: Overrides of the family's defaults.

    Raises:
        RowError: The batches of the row contradict each other.
    """
    model, cluster = model or row_network(cells), cluster or row_cluster(cells)
    row, devices = cells.row, cells.whole("n_accel")
    if loader is READY:
        cells.assume("samples are on the device when a step begins")
    samples = micro_batch or cells.whole("micro_batch")
    if row.global_batch is not None and row.global_batch != samples * devices:
        raise cells.refusal(
            f"found global_batch {row.global_batch}, but {devices} x {samples} samples give "
            f"{samples * devices}"
        )
    return Job(
        model=model,
        data=Data(global_batch=samples * devices, has_sequence=False, loader=loader),
        precision=_precision(cells, cluster),
        optimizer=optimizer,
        cluster=cluster,
        strategy=StrategyOptions(dp=devices, micro_batch=samples, **(options or {})),
        software=software,
        source=f"row {row.row_id} of {row.source_id}",
        traits=dict(traits or {}),
    )


def _precision(cells: Cells, cluster: Cluster) -> str:
    """Return the precision as a job names it; fp32 becomes TF32 where it can and may by itself."""
    format_, printed = cells.precision(), str(cells.row.precision).lower()
    if format_ is Precision.FP16 and printed.startswith(AUTOCAST):
        return AUTOCAST
    has_tf32 = Precision.TF32 in cluster.node.device.peak_flop_per_s
    if format_ is Precision.FP32 and has_tf32 and "tf32" in printed:
        cells.assume(f"precision '{cells.row.precision}': TF32, the library's default there")
        return str(Precision.TF32)
    return str(format_)
