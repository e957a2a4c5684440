"""Rates of the links of a device, and of computation and communication at the same time."""

from __future__ import annotations

from wattree.cost.calibration import Calibration
from wattree.cost.collective import LinkRates
from wattree.hardware import Cluster, Device, Pool


def links_of(cluster: Cluster, pool: Pool, calibration: Calibration) -> LinkRates:
    """Return the rates of the links of one device of a pool."""
    node, device = pool.node, pool.node.device
    scale_up = node.scale_up.bandwidth_bytes_per_s
    # Without adapters nothing is reached: one byte a second keeps the arithmetic finite.
    adapters = max(node.nics * node.nic_bandwidth_bytes_per_s / node.devices, 1.0)
    network = adapters * calibration.learned(device, "network_efficiency")
    inside = cluster.nodes <= cluster.fabric.leaf_nodes  # one leaf, which is not oversubscribed
    oversubscription = 1.0 if inside else cluster.fabric.oversubscription
    return LinkRates(
        scale_up_bytes_per_s=scale_up * calibration.device(device, "bus_efficiency"),
        scale_up_reduce_bytes_per_s=scale_up * calibration.device(device, "bus_reduce_efficiency"),
        adapter_bytes_per_s=network,
        uplink_bytes_per_s=network / oversubscription if oversubscription > 1 else float("inf"),
        alpha_s=calibration.device(device, "alpha_s"),
        alpha_network_s=node.nic_latency_s + cluster.fabric.switch_latency_s,
        alpha_reduce_s=calibration.own(device, "alpha_reduce_s", 0.0) or None,
        ring_step_s=calibration.general("ring_step_s") if device.kind == "gpu" else None,
    )


def concurrent_rates(
    cluster: Cluster, device: Device, links: LinkRates, calibration: Calibration
) -> tuple[float, float]:
    """Return the rates of compute and communication while both run concurrently, between replicas.

    Where the processors that compute also move the bytes, links that are slower than memory leave
    them more time: each byte takes so much of it as was measured between ranks of one machine.
    Collectives inside a layer are charged one by one (`exchange_s`, `exchange_s_per_byte`).
    """
    computing = calibration.general("overlap_compute_rate")
    # A fit may exceed 1; no transfer is faster with overlap than alone.
    moving = min(1.0, calibration.general("overlap_communication_rate"))
    s_per_byte = calibration.own(device, "exchange_s_per_byte", 0.0)
    if s_per_byte > 0 and cluster.nodes > 1:
        rate = min(links.adapter_bytes_per_s, links.uplink_bytes_per_s)
        left = 1.0 - s_per_byte * rate
        if left > computing:
            return left, 1.0
    return computing, moving
