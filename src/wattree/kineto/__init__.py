"""Traces of PyTorch's profiler (Kineto): the timed operations of each rank of a real training."""
