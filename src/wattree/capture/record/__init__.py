"""Runs a module on fake tensors and records its operators. This package needs torch."""

from wattree.capture.record.recorder import Inputs, record
from wattree.capture.record.tracker import RecordingLimits

__all__ = ["Inputs", "RecordingLimits", "record"]
