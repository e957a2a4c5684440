"""Graphs of the catalog, for laws that all of them obey."""

from __future__ import annotations

from functools import cache

from wattree.capture import load_model
from wattree.graph import ModelGraph

__all__ = ["catalog_graph"]


@cache
def catalog_graph(name: str) -> ModelGraph:
    """Return a model's graph; reading all of them takes seconds, and each law wants all."""
    return load_model(name)
