"""Operators merged as a compiler of kernels merges them: fewer launches, fewer bytes."""

from wattree.capture.fusion.fuse import fused, with_interactions

__all__ = ["fused", "with_interactions"]
