"""Predictions: the one place where capture, compiler, executor and energy meet."""

from wattree.closed_form.strategies import Degrees, Estimates, Shared
from wattree.lowering.model import check_recomputation, model_of
from wattree.lowering.setting import Setting, setting_of
from wattree.predict.estimate import StepEstimate, estimate
from wattree.predict.forecast import forecast_job
from wattree.predict.power_sweep import LimitedStep, PowerSweep, power_sweep, usual_limits_w
from wattree.predict.run_of import idle_run_of, loader_run_of, run_of
from wattree.predict.simulate import Prediction, predicted, simulate

__all__ = [
    "Degrees",
    "Estimates",
    "LimitedStep",
    "PowerSweep",
    "Prediction",
    "Setting",
    "Shared",
    "StepEstimate",
    "check_recomputation",
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
