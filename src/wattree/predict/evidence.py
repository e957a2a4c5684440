"""What each figure of a result rests on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wattree.cost import Calibration, Software, device_names
from wattree.cost.rates import precision_class
from wattree.graph import TaskKind
from wattree.hardware import Precision
from wattree.job import Job
from wattree.trace import Evidence, Trace

__all__ = ["provenance_of"]

_ORDER = ("measured", "fitted", "pooled", "datasheet")


def provenance_of(
    trace: Trace, calibration: Calibration, job: Job, software: Software
) -> Mapping[str, Evidence]:
    """Return quantity → evidence, weighted by the time of the tasks it rests on."""
    device = job.cluster.node.device
    graph = trace.graph
    busy = trace.end_s - trace.start_s
    computing = float(busy[graph.kind == TaskKind.COMPUTE].sum())
    moving = float(busy[np.isin(graph.kind, (TaskKind.COLLECTIVE, TaskKind.TRANSFER))].sum())
    width = precision_class(Precision(job.precision))
    matmul = calibration.evidence(*device_names(device, f"matmul.{width}"))
    link = calibration.evidence(*device_names(device, "bus_efficiency"))
    family = calibration.evidence(f"family.{software.name}.math", "pooled.math")
    total = max(computing + moving, 1e-30)
    shares: dict[str, float] = {}
    for kind, seconds in ((matmul, computing), (link, moving)):
        shares[kind] = shares.get(kind, 0.0) + seconds / total
    time = Evidence(
        evidence=_weakest(shares),
        share=shares,
        note=f"matrix rates of {device.name}: {matmul}; links: {link}; "
        f"habits of {software.name}: {family}",
    )
    energy = Evidence(
        evidence="pooled",
        share={"pooled": 1.0},
        note="static plus dynamic power scaled from the datasheet by pooled factors",
    )
    return {
        "step_time_s": time,
        "memory.peak_bytes": Evidence(
            evidence="fitted",
            share={"fitted": 1.0},
            note="tensors counted; allocator overhead fitted",
        ),
        "energy_j": energy,
    } | _of_the_site(job)


def _of_the_site(job: Job) -> dict[str, Evidence]:
    """Money and carbon rest on what is known of node and site, if anything is."""
    whole = {"datasheet": 1.0}
    found = {}
    if job.cluster.node.price_usd_per_s is not None:
        found["cost_usd"] = Evidence(
            evidence="datasheet", share=whole, note="list price of the node"
        )
    if job.cluster.site.carbon_gco2e_per_j is not None:
        found["carbon_gco2e"] = Evidence(
            evidence="datasheet",
            share=whole,
            note=f"grid intensity and PUE of {job.cluster.site.name}",
        )
    return found


def _weakest(shares: Mapping[str, float]) -> str:
    present = [kind for kind, share in shares.items() if share > 0.01]
    return max(present, key=_ORDER.index) if present else "datasheet"
