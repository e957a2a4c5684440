"""Predictions: the one place where capture, compiler, executor and energy meet."""

from wattree.predict.estimate import Degrees, Estimates, Shared, estimate
from wattree.predict.model import check_recomputation
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
    "predicted",
    "setting_of",
    "simulate",
]
