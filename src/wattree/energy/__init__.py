"""Power, energy, money and carbon. Pure functions."""

from wattree.energy.loading import core_w, loading_energy_j
from wattree.energy.power import cap_slowdown, dynamic_energy_j, rated_dynamic_w

__all__ = ["cap_slowdown", "core_w", "dynamic_energy_j", "loading_energy_j", "rated_dynamic_w"]
