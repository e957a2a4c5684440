"""From a recording of a module to its model graph. Pure functions, no torch."""

from wattree.capture.convert.model import model_graph

__all__ = ["model_graph"]
