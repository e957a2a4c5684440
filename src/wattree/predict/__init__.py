"""Predictions: the one place where capture, compiler, executor and energy meet."""

from wattree.predict.estimate import Degrees, Estimates, Shared, estimate
from wattree.predict.setting import Setting, setting_of
from wattree.predict.simulate import Prediction, predicted, simulate

__all__ = [
    "Degrees",
    "Estimates",
    "Prediction",
    "Setting",
    "Shared",
    "estimate",
    "predicted",
    "setting_of",
    "simulate",
]
