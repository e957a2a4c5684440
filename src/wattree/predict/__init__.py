"""Predictions: the one place where capture, compiler, executor and energy meet."""

from wattree.predict.estimate import Degrees, Estimates, Shared, estimate
from wattree.predict.model import check_recomputation
from wattree.predict.run_of import idle_run_of, loader_run_of, run_of
from wattree.predict.setting import Setting, setting_of
from wattree.predict.simulate import Prediction, predicted, simulate

__all__ = [
    "Degrees",
    "Estimates",
    "Prediction",
    "Setting",
    "Shared",
    "check_recomputation",
    "estimate",
    "idle_run_of",
    "loader_run_of",
    "predicted",
    "run_of",
    "setting_of",
    "simulate",
]
