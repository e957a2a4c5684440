"""Benchmarks: one module per table, run as `python -m benchmarks.<name>`."""
