"""Power of a cluster's devices from datasheet and calibration; the formulas are in `energy`."""

from __future__ import annotations

from wattree.cost.calibration import Calibration
from wattree.cost.precisions import WIDE, computes_on_cores, precision_class
from wattree.energy import ClockCurve, DevicePower
from wattree.energy.anchors import Mixture
from wattree.hardware import Cluster, Device, Pool, Precision


def clock_curve(device: Device, calibration: Calibration) -> ClockCurve:
    """Return a device's curve of voltage over clock."""
    return ClockCurve(
        floor_voltage=calibration.device(device, "clock_floor_voltage"),
        voltage_slope=calibration.device(device, "clock_voltage_slope"),
        lowest=calibration.device(device, "clock_lowest"),
        memory_clock=calibration.device(device, "clock_memory"),
        leakage_w=calibration.device(device, "clock_leakage") * device.idle_w,
    )


def math_constant(device: Device, precision: Precision) -> str:
    """Return the name of the constant of what products draw, by what multiplies.

    Cores of GPUs draw less for products of 32 bits at their peak than matrix units at theirs, so
    that those of units (TF32, AMD's fp32) have a constant of their own: `power_math.tf32`.
    """
    found = device.matrix_format(precision)
    if found not in WIDE:
        return f"power_math.{precision_class(precision)}"
    by_cores = device.kind == "gpu" and computes_on_cores(device, precision)
    return "power_math.fp32" if by_cores else "power_math.tf32"


def device_power(
    device: Device, precision: Precision, calibration: Calibration, *, limit_w: float | None = None
) -> DevicePower:
    """Return the power model of a device.

    Args:
        device: Datasheet.
        precision: Of matrix work.
        calibration: Constants.
        limit_w: Cap on it; none or one above rated power changes nothing. [W]

    Raises:
        CostError: The device has no rate for `precision`.
    """
    # Boards that hold a die far below what it can draw ask for more than their range.
    demand = calibration.own(device, "power_demand", 1.0)
    memory_share = demand * calibration.device(device, "power_memory")
    return DevicePower(
        rated_w=device.tdp_w,
        idle_w=device.idle_w,
        limit_w=device.tdp_w if limit_w is None else min(limit_w, device.tdp_w),
        held_share=calibration.device(device, "power_held"),
        active_share=calibration.device(device, "power_active"),
        math_share=demand * calibration.device(device, math_constant(device, precision)),
        memory_share=memory_share,
        vector_share=(calibration.device(device, "power_training") - 1.0) * memory_share,
        spin_share=calibration.device(device, "power_spin"),
        waiting_share=calibration.general("power_waiting"),
        peak_flop_per_s=device.matrix_peak_flop_per_s(precision),
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        curve=clock_curve(device, calibration),
    )


def device_mixture(device: Device, calibration: Calibration) -> Mixture:
    """Return how training fills a device, for predicting measured runs under lower power limits."""
    return Mixture(
        rest_w=calibration.device(device, "anchor_rest") * device.tdp_w,
        most_w=calibration.device(device, "anchor_most") * device.tdp_w,
        steadiness=calibration.device(device, "anchor_steadiness"),
        memory_power_share=calibration.device(device, "anchor_memory_power"),
        math_share=calibration.device(device, "anchor_math"),
        held_share=calibration.device(device, "power_held"),
        curve=clock_curve(device, calibration),
    )


def pool_powers(
    cluster: Cluster, precision: Precision, calibration: Calibration
) -> tuple[DevicePower, ...]:
    """Return the power models of each pool's devices under their power limits."""
    return tuple(pool_power(cluster, pool, precision, calibration) for pool in cluster.pools)


def pool_power(
    cluster: Cluster, pool: Pool, precision: Precision, calibration: Calibration
) -> DevicePower:
    """Return the power model of a pool's devices under its power limit."""
    return device_power(pool.node.device, precision, calibration, limit_w=cluster.limit_w(pool))
