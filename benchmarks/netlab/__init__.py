"""Real traffic on emulated hosts: recorded scenarios, and the executor's predictions of them."""

from benchmarks.netlab.compare import (
    Comparison,
    Prediction,
    Summary,
    compare,
    predict,
    summary,
)
from benchmarks.netlab.fit import fit_machine, unfitted
from benchmarks.netlab.graph import Built, Transit, build_graph, network_of
from benchmarks.netlab.machine import Machine, load_machine, write_machine
from benchmarks.netlab.scenario import Scenario, bundled_scenarios, load_folder, load_scenario
from benchmarks.netlab.traffic import Message, messages_of

__all__ = [
    "Built",
    "Comparison",
    "Machine",
    "Message",
    "Prediction",
    "Scenario",
    "Summary",
    "Transit",
    "build_graph",
    "bundled_scenarios",
    "compare",
    "fit_machine",
    "load_folder",
    "load_machine",
    "load_scenario",
    "messages_of",
    "network_of",
    "predict",
    "summary",
    "unfitted",
    "write_machine",
]
