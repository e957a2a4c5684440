"""Results as text, JSON and timelines."""

from wattree.report.json_output import json_text, write_json
from wattree.report.perfetto import chrome_trace, write_trace
from wattree.report.plan_text import show_plan
from wattree.report.power_sweep_text import show_power_sweep
from wattree.report.result_text import show_result
from wattree.report.words import strategy_in_words

__all__ = [
    "chrome_trace",
    "json_text",
    "show_plan",
    "show_power_sweep",
    "show_result",
    "strategy_in_words",
    "write_json",
    "write_trace",
]
