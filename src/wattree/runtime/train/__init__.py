"""The loop that trains a job's strategy for real; torch is loaded when a rank begins."""

from wattree.runtime.train.settings import TrainSettings

__all__ = ["TrainSettings"]
