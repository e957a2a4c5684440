"""Runs a module on fake tensors and records its operators. This package needs torch."""

from wattree.capture.record.recorder import record

__all__ = ["record"]
