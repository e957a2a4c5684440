"""Predictions: the one place where capture, compiler, executor and energy meet."""

from wattree.predict.simulate import Prediction, Setting, predicted, setting_of, simulate

__all__ = ["Prediction", "Setting", "predicted", "setting_of", "simulate"]
