"""Predictions: combines capture, compiler, executor and accounts."""

from typing import TYPE_CHECKING

from wattree.lazy import fetching as _fetching
from wattree.lowering.model import check_recomputation, model_of
from wattree.lowering.setting import Setting
from wattree.predict.left_open import setting_of

if TYPE_CHECKING:  # at run time `__getattr__` fetches them
    from wattree.closed_form.degrees import Degrees
    from wattree.closed_form.strategies import Shared
    from wattree.predict.forecast import forecast_job
    from wattree.predict.runs import idle_run_of, loader_run_of, run_of
    from wattree.predict.simulation import Prediction, predicted, simulate
    from wattree.predict.step_estimate import StepEstimate, check_strategy, estimate
    from wattree.predict.sweep import PowerSweep, power_sweep, usual_limits_w

__all__ = [
    "Degrees",
    "PowerSweep",
    "Prediction",
    "Setting",
    "Shared",
    "StepEstimate",
    "check_recomputation",
    "check_strategy",
    "estimate",
    "forecast_job",
    "idle_run_of",
    "loader_run_of",
    "model_of",
    "power_sweep",
    "predicted",
    "run_of",
    "setting_of",
    "simulate",
    "usual_limits_w",
]

__getattr__ = _fetching(__name__)
