"""The cluster on which `wattree replay` simulates a trace: options → a platform."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from wattree.errors import HardwareError, JobError, UnknownNameError, WattreeError
from wattree.units import whole_number

if TYPE_CHECKING:
    from wattree.hardware import Cluster
    from wattree.interchange import Platform


class Compute(StrEnum):
    """Where the times of computations come from."""

    RECORDED = "recorded"
    ROOFLINE = "roofline"


def platform_of(
    cluster: str | None,
    *,
    compute: Compute,
    precision: str,
    software: str,
    calibration: Path | None,
) -> Platform | None:
    """Return the platform of the options; None without a cluster.

    Raises:
        WattreeError: The number of nodes is none, or the roofline has no cluster.
    """
    if cluster is None:
        if compute is Compute.ROOFLINE:
            raise WattreeError("--compute roofline: needs a cluster (--cluster NODE)")
        return None
    from wattree.interchange import Platform

    return Platform(
        cluster=_cluster(cluster),
        software=software,
        precision=precision,
        roofline=compute is Compute.ROOFLINE,
        calibration=calibration,
    )


def _cluster(text: str) -> Cluster:
    """Return the nodes in a text such as `dgx-h100:2`, on their own fabric.

    Raises:
        WattreeError: It names no node, no number of them, or nodes that cannot be joined.
    """
    from wattree.hardware import Cluster, load_fabric, load_node, load_site
    from wattree.hardware.load import default_fabric_name

    name, colon, count = text.rpartition(":")
    if not colon:
        name, count = text, "1"
    nodes = whole_number(count, digits=6)
    if not nodes:
        raise WattreeError(
            f"--cluster: found {count!r:.40} nodes in '{text:.80}', "
            "expected NODE or NODE:N, N from 1"
        )
    source = Path(name) if name.endswith((".yaml", ".yml")) else name
    try:
        return Cluster(
            node=load_node(source),
            nodes=nodes,
            fabric=load_fabric(default_fabric_name(source)),
            site=load_site("world-average"),
        )
    except HardwareError as error:
        raise JobError("--cluster", list(error.misfits.values()) or list(error.lines)) from error
    except UnknownNameError as error:
        raise WattreeError(f"--cluster: {error}") from error
