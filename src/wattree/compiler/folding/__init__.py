"""Ranks that do the same become one class; classes and links become arrays."""
