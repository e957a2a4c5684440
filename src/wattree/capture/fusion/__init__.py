"""Operators merged as a compiler of kernels merges them: fewer launches, bytes and saved tensors."""

from wattree.capture.fusion.fuse import fused

__all__ = ["fused"]
