"""Measured values that cannot be: above what the hardware has or draws, or faster than it is."""

from __future__ import annotations

from collections.abc import Iterator

from wattree.accounts.pool_use import faster_than_peak
from wattree.lowering.setting import Setting
from wattree.trace import Result
from wattree.units import GIB
from wattree.validation.measurement import memory_measurement, power_scope
from wattree.validation.rows import MeasuredRow

#: Boards draw a few percent above their rated power for moments. Hosts differ by maker: a DGX H100
#: takes up to 10.2 kW by its data sheet, 1.4 times what its catalog entry adds up to.
_MOST_DRAWN = 1.5
#: Sources round GB and GiB of a full device.
_MOST_HELD = 1.02
_DEVICE = ("device_static", "device_dynamic")


def impossible(row: MeasuredRow, setting: Setting, step_s: float | None) -> str | None:
    """Return why a row cannot be a run of its job; None if it can.

    Args:
        setting: Of the row's job.
        step_s: Measured; None where the row has no step time. [s]
    """
    return next(_faults(row, setting, step_s), None)


def _faults(row: MeasuredRow, setting: Setting, step_s: float | None) -> Iterator[str]:
    cluster = setting.job.cluster
    device, host = cluster.node.device, cluster.node.host
    held_bytes = memory_measurement(row).value if row.mem_gib_per_gpu else None
    if held_bytes and held_bytes > _MOST_HELD * device.memory_bytes:
        yield (
            f"mem_gib_per_gpu: found {held_bytes / GIB:,.0f} GiB, but {device.name} has "
            f"{device.memory_bytes / GIB:.0f} GiB; is it in MiB, or of several devices?"
        )
    node_w = (cluster.node.devices * device.tdp_w + host.busy_w) * host.behind
    all_w = cluster.nodes * node_w
    most_w = {"device": device.tdp_w, "node": node_w, "nodes": all_w, "cluster": all_w}
    scope, drawn_w = power_scope(row), row.avg_power_w or 0.0
    if scope and drawn_w > _MOST_DRAWN * most_w[scope]:
        yield (
            f"avg_power_w: found {drawn_w:,.0f} W of power_scope '{row.power_scope}', which draws "
            f"some {most_w[scope]:,.0f} W under full load"
        )
    if step_s is not None and (
        fault := faster_than_peak(
            step_s, setting.model_flop(), cluster, cluster.devices, setting.peak_precision
        )
    ):
        yield f"step time: {fault}"


def scoped_power_w(row: MeasuredRow, result: Result, nodes: int) -> float:
    """Return the predicted power of that of which a row's `avg_power_w` is. [W]"""
    scope, parts = power_scope(row), dict(result.energy_j.by_component)
    if scope == "cluster":
        return result.average_power_w
    # Meters at the nodes see neither switches nor the facility, and direct current no conversion.
    beyond = {"switch", "facility"} | ({"conversion"} if "DC" in (row.power_scope or "") else set())
    counted = _DEVICE if scope == "device" else parts.keys() - beyond
    of_all_w = sum(parts.get(name, 0.0) for name in counted) / result.step_time_s
    return of_all_w / {"device": result.ranks, "node": nodes}.get(scope or "", 1)
