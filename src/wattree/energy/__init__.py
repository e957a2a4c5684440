"""Power, energy, money and carbon. Pure functions."""

from wattree.energy.power import cap_slowdown, dynamic_energy_j, rated_dynamic_w

__all__ = ["cap_slowdown", "dynamic_energy_j", "rated_dynamic_w"]
