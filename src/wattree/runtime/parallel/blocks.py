"""The blocks of a model: the units of gathering, sharding and recomputation."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def blocks_of(part: nn.Module) -> dict[int, nn.Module]:
    """Return number in the whole model → layer, in order; none where nothing is a row of layers.

    Layers of the built-in models are named by their numbers. Of other modules they are what the
    outermost `ModuleList`s hold, counted one after another.

    Args:
        part: A model, or a rank's part of one.
    """
    layers = getattr(part, "layers", None)
    if isinstance(layers, nn.ModuleDict):
        return {int(name): layer for name, layer in layers.items()}
    return dict(enumerate(_listed(part)))


def _listed(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList):
        yield from module
        return
    for child in module.children():
        yield from _listed(child)
