"""Running a module on fake tensors and writing down what it does. Everything here needs torch."""

from wattree.capture.record.recorder import record

__all__ = ["record"]
