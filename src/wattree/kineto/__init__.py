"""Traces of PyTorch's profiler (Kineto): what each rank of a real training did, and when."""
