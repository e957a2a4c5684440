"""Intervals of a closed form's figures, which knows no parts of a step."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.accounts import constant_classes as names
from wattree.accounts.constant_classes import constants_of
from wattree.accounts.interval import (
    figure_spreads,
    grid_share,
    interval,
    interval_parts,
    power_spread,
    time_deviations,
)
from wattree.accounts.job_facts import facts_of
from wattree.accounts.memory_spread import memory_spread
from wattree.hardware import Device
from wattree.lowering.setting import Setting


def estimated_intervals(
    setting: Setting,
    device: Device,
    devices: float,
    figures: Mapping[str, float | None],
    *,
    read_share: float = 0.0,
) -> dict[str, tuple[float, float]]:
    """Return intervals of the figures of an estimate.

    All of the step is taken to rest on products (of networks: convolutions) but what reads weights
    and caches, energy and money to be as unsure as time and power together.

    Args:
        device: Of the slowest ranks.
        figures: Quantity → value; None where it is unknown.
        read_share: Of the time, that decode steps take, which are bound by memory.
    """
    facts, constants = facts_of(setting, device, devices), constants_of(setting, device)
    products = names.CONVOLUTION if facts.kind == "network" else names.PRODUCTS
    shares = {products: 1.0 - read_share, names.MEMORY: read_share}
    parts, _ = interval_parts(setting, facts, shares, constants)
    spreads = figure_spreads(
        time_deviations(parts),
        power_spread(setting, device),
        memory_spread(setting, 1.0),
        grid=grid_share(setting.job, figures.get("carbon_gco2e"), figures.get("energy_j") or 0.0),
    )
    return {
        name: interval(value, *spreads[name])
        for name, value in figures.items()
        if value is not None
    }
