"""Phantom-layer settings of a tree node: linear layers that exchange ghosts.

A phantom layer is another function than the linear layer in whose place it stands. Of the blocks
of its weight, one for each pair of ranks, only those on the diagonal are of full rank; the others
are products of rank `ghosts` (S. K. Seal et al., arXiv 2508.00960, 2025).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

#: A decompressor for each pair of ranks, or one for the sum of the others' ghosts.
PAIR: Final = "pair"
SHARED: Final = "shared"
VARIANTS: Final = (PAIR, SHARED)
#: What ranks send each other: their ghosts, or, as tensor parallelism does, their activations, of
#: which each rank makes everybody's ghosts itself. The function is the same.
GHOSTS: Final = "ghosts"
ACTIVATIONS: Final = "activations"
EXCHANGES: Final = (GHOSTS, ACTIVATIONS)
#: Dim of phantom layers that says whose neurons: the axis splits it, one index to a rank.
RANK: Final = "rank"
#: Family of transformers → names of the linear layers of its feed-forward parts, the one that makes
#: whole outputs last.
FEED_FORWARDS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama": ("*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj"),
    "gpt2": ("*mlp.c_fc", "*mlp.c_proj"),
    "bert": ("*intermediate.dense", "*output.dense"),
    "torch": ("*linear1", "*linear2"),
    "opt": ("*fc1", "*fc2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomLayers:
    """Settings that turn linear layers into phantom layers.

    Attributes:
        ghosts: Neurons that each rank sends of each layer; 0 leaves the diagonal blocks alone.
        axis: Mesh axis whose ranks have a block each.
        variant: One of `VARIANTS`.
        exchange: One of `EXCHANGES`.
    """

    ghosts: int
    axis: str = "tp"
    variant: str = PAIR
    exchange: str = GHOSTS


def names_layer(pattern: str, name: str) -> bool:
    """Return whether a pattern names a layer of a module: it, or its end.

    In simulations a linear layer that is a block of its own is called `linear` in it.
    """
    known, ends = (name, f"{name}.linear"), (pattern, f"*.{pattern}")
    return any(fnmatchcase(each, end) for each in known for end in ends)


def known_transformer(names: Iterable[str]) -> str | None:
    """Return the family of `FEED_FORWARDS` whose layers are among names of linear layers."""
    found = list(names)
    for family, patterns in FEED_FORWARDS.items():
        if all(any(fnmatchcase(name, pattern) for name in found) for pattern in patterns):
            return family
    return None
