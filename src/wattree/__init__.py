"""Plans, predicts, designs, runs and measures distributed training.

Everything is fetched when first used, so that `import wattree` takes no time and loads no driver.
"""

from typing import TYPE_CHECKING, Any

from wattree.lazy import fetching as _fetching

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.capture import Recording, capture_module
    from wattree.energy.commands import compare_energy, fit_energy, predict_energy
    from wattree.errors import WattreeError
    from wattree.interchange import Exported, Platform, Replay, export_chakra, replay
    from wattree.job import Job, job_from_mapping
    from wattree.lowering.job_file import load_job
    from wattree.predict import (
        PowerSweep,
        Prediction,
        StepEstimate,
        estimate,
        power_sweep,
        simulate,
    )
    from wattree.search import Plan, plan
    from wattree.search.compared import RunComparison, compare
    from wattree.trace import Result, Trace
    from wattree.validation import Validation, validate

__all__ = [
    "Exported",
    "Job",
    "Plan",
    "Platform",
    "PowerSweep",
    "Prediction",
    "Recording",
    "Replay",
    "Result",
    "RunComparison",
    "StepEstimate",
    "Trace",
    "Validation",
    "WattreeError",
    "__version__",
    "capture_module",
    "compare",
    "compare_energy",
    "estimate",
    "export_chakra",
    "fit_energy",
    "job_from_mapping",
    "load_job",
    "plan",
    "power_sweep",
    "predict_energy",
    "replay",
    "simulate",
    "validate",
]

_fetch = _fetching(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from wattree.registry import installed_version as _installed_version

        return _installed_version() or "0+unknown"
    return _fetch(name)


def __dir__() -> list[str]:
    return sorted(__all__)
