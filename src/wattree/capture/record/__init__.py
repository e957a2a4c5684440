"""Running a module on fake tensors and writing down what it does. Everything here needs torch."""

from wattree.capture.record.recorder import Inputs, record
from wattree.capture.record.tracker import RecordingLimits

__all__ = ["Inputs", "RecordingLimits", "record"]
