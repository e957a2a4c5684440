"""Results as text, JSON and timelines."""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.report.json_output import json_text, write_json
    from wattree.report.perfetto import chrome_trace, write_trace
    from wattree.report.plan_text import show_plan, show_software
    from wattree.report.power_sweep_text import show_power_sweep
    from wattree.report.result_text import show_result
    from wattree.report.words import strategy_in_words

__all__ = [
    "chrome_trace",
    "json_text",
    "show_plan",
    "show_power_sweep",
    "show_result",
    "show_software",
    "strategy_in_words",
    "write_json",
    "write_trace",
]

__getattr__ = _fetching(__name__)
