"""Energy of a replayed trace: from its recorded work, else the upper bound by board power."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from wattree.accounts.breakdown import membership_class
from wattree.accounts.energy_use import StepEnergy, step_energy
from wattree.cost import Calibration
from wattree.cost.device_power import pool_powers
from wattree.energy import DevicePower
from wattree.graph import TaskKind
from wattree.hardware import Cluster, Precision
from wattree.trace import EnergyUse, Evidence, Trace
from wattree.units import format_bytes

#: Below this share what is left of a difference is rounding.
_ROUNDING = 1e-9
_COMMUNICATION = (TaskKind.COLLECTIVE, TaskKind.TRANSFER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEnergy:
    """Energy of one replayed step of the nodes that its ranks fill.

    Attributes:
        use: By stage, with PUE. [J]
        average_w, peak_w: Of those nodes, before PUE. [W]
        nodes: How many these are.
        unknown_busy_s: Time of computations that tell neither operations nor bytes, all ranks
            together; they count at rated power. [s]
        evidence: What it rests on, by shares of the energy.
        not_counted: Domains that the trace or the model says nothing of, in words.
        curve: Power over the step: (time, W) pairs. [s, W]
    """

    use: EnergyUse
    average_w: float
    peak_w: float
    nodes: int
    unknown_busy_s: float
    evidence: Evidence
    not_counted: tuple[str, ...]
    curve: tuple[tuple[float, float], ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, ready for JSON, without the curve."""
        found = asdict(self)
        del found["curve"]
        return found


def replay_energy(
    trace: Trace, cluster: Cluster, precision: Precision, calibration: Calibration
) -> ReplayEnergy:
    """Return the energy of a trace that was executed on a cluster.

    Devices at rest, hosts and switches draw their power for the whole step. A computation adds
    what its operations and bytes take, as in a simulated step; one that tells neither is taken to
    draw what the board holds under its limit while it runs, the most that it can. A rank that
    communicates adds its share, however many bytes it sends.

    Args:
        trace: Every rank is a class of its own.
        cluster: Rank r on device r.
    """
    graph = trace.graph
    has_no_effect = (graph.flop == 0) & (graph.memory_traffic_bytes == 0)
    lasts_s = trace.end_s - trace.start_s
    unknown = (graph.kind == TaskKind.COMPUTE) & has_no_effect & (lasts_s > 0)
    peak = cluster.node.device.matrix_peak_flop_per_s(precision)
    # Products at peak rate all along ask for more than rated power, which is what they then get.
    flop = np.where(unknown, peak * lasts_s, graph.flop)
    ranks = graph.ranks
    powers = pool_powers(cluster, precision, calibration)
    rated = step_energy(replace(trace, graph=replace(graph, flop=flop)), cluster, powers, ranks)
    task, _ = membership_class(trace)
    unknown_busy_s = float(lasts_s[task[unknown[task]]].sum())
    nodes = -(-ranks // cluster.node.devices)
    return ReplayEnergy(
        use=rated.use,
        average_w=rated.average_w,
        peak_w=rated.peak_w,
        nodes=nodes,
        unknown_busy_s=unknown_busy_s,
        evidence=_evidence(rated, unknown_busy_s, cluster, powers[0]),
        not_counted=_not_counted(trace, cluster, nodes),
        curve=rated.curve,
    )


def _evidence(
    rated: StepEnergy, unknown_busy_s: float, cluster: Cluster, power: DevicePower
) -> Evidence:
    """Return the shares of datasheet powers and of work times pooled factors."""
    total_j = max(rated.use.total, 1e-30)
    behind = cluster.node.host.behind
    unknown_j = power.most_dynamic_w * unknown_busy_s * behind * cluster.site.pue
    pooled = (rated.use.dynamic - unknown_j) / total_j
    pooled = pooled if pooled > _ROUNDING else 0.0
    share = {"pooled": pooled, "datasheet": max(1.0 - pooled, 0.0)}
    note = (
        f"power at rest of {cluster.node.name} by its datasheet; work times pooled factors; "
        f"PUE of {cluster.site.name}"
    )
    if unknown_busy_s > 0:
        device = cluster.node.device
        note += (
            "; computations that tell neither num_ops nor tensor_size at the most that "
            f"{device.name} holds, {power.idle_w + power.most_dynamic_w:.0f} W, an upper bound"
        )
    # Of the two the pooled one is the weaker evidence, where it says anything.
    return Evidence(evidence="pooled" if pooled > 0 else "datasheet", share=share, note=note)


def _not_counted(trace: Trace, cluster: Cluster, nodes: int) -> tuple[str, ...]:
    """Return the parts that the energy excludes, so that they are not read as zero."""
    graph = trace.graph
    task, _ = membership_class(trace)
    moves = np.isin(graph.kind[task], _COMMUNICATION)
    sent = float(graph.link_traffic_bytes[task[moves]].sum())
    found = [
        "storage reads and input, and rests of a device between kernels that its host is late to "
        "launch: a trace does not tell them"
    ]
    if sent > 0:
        found.append(
            f"energy per byte of the {format_bytes(sent)} sent over links: adapters and switches "
            "count by time, not by traffic"
        )
    if (graph.kind == TaskKind.HOST).any():
        found.append("work of hosts by its amount: hosts count as busy for the whole step")
    if cluster.nodes > nodes:
        found.append(f"{cluster.nodes - nodes} nodes of the cluster that no rank is on")
    return tuple(found)
