"""Studies of clusters: resources swept together with strategies."""

from wattree.design.load import load_study, study_from_mapping
from wattree.design.money import cost_note
from wattree.design.outcome import Outcome, WorkloadOutcome
from wattree.design.results import Results, results_json
from wattree.design.run import Progress, run_study
from wattree.design.store import default_store
from wattree.design.study import Axis, Study, Workload

__all__ = [
    "Axis",
    "Outcome",
    "Progress",
    "Results",
    "Study",
    "Workload",
    "WorkloadOutcome",
    "cost_note",
    "default_store",
    "load_study",
    "results_json",
    "run_study",
    "study_from_mapping",
]
