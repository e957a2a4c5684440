"""Meters, windows and microbenchmarks: what real devices do."""
