"""Real traffic on emulated hosts: recorded scenarios, and the executor's predictions of them."""

from benchmarks.netlab.compare import Comparison, Prediction, compare, predict, summary
from benchmarks.netlab.graph import Built, network_of
from benchmarks.netlab.machine import Machine, load_machine
from benchmarks.netlab.scenario import Scenario, bundled_scenarios, load_folder

__all__ = [
    "Built",
    "Comparison",
    "Machine",
    "Prediction",
    "Scenario",
    "bundled_scenarios",
    "compare",
    "load_folder",
    "load_machine",
    "network_of",
    "predict",
    "summary",
]
