"""Where points are evaluated: this process, a pool of processes, or a Ray cluster."""

from wattree.design.backends.backend import Backend

__all__ = ["Backend"]
