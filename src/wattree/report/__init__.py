"""Results as text, JSON and timelines."""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.report.energy_text import show_power_sweep
    from wattree.report.json_output import json_text
    from wattree.report.plan_text import show_plan, show_software
    from wattree.report.result_text import show_result

__all__ = [
    "json_text",
    "show_plan",
    "show_power_sweep",
    "show_result",
    "show_software",
]

__getattr__ = _fetching(__name__)
