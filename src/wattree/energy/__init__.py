"""Power, energy, money and carbon. Pure functions."""

from wattree.energy.anchors import Mixture, under_limit
from wattree.energy.clocks import ClockCurve, Demand, clock_under_limit, power_at_clock_w
from wattree.energy.loading import core_w, loading_energy_j
from wattree.energy.power import DevicePower, dynamic_energy_j

__all__ = [
    "ClockCurve",
    "Demand",
    "DevicePower",
    "Mixture",
    "clock_under_limit",
    "core_w",
    "dynamic_energy_j",
    "loading_energy_j",
    "power_at_clock_w",
    "under_limit",
]
