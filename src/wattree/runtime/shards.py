"""How a width is cut over ranks, and in which order a rank sees its peers. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from wattree.errors import StrategyError


def shard_widths(width: int, size: int) -> tuple[int, ...]:
    """Return the width of every rank's shard; the first `width % size` get one more.

    Raises:
        StrategyError: Some rank would hold nothing.
    """
    if size < 1 or width < size:
        raise StrategyError({"width": f"{width} over {size} ranks: every rank needs at least one"})
    least, more = divmod(width, size)
    return tuple(least + (rank < more) for rank in range(size))


def shard_offsets(widths: tuple[int, ...]) -> tuple[int, ...]:
    """Return where every shard begins, and after the last one the whole width."""
    return (0, *accumulate(widths))


def shard_slices(widths: Sequence[int]) -> list[slice]:
    """Return where every shard lies in the whole."""
    return [slice(*ends) for ends in pairwise((0, *accumulate(widths)))]


def peers_of(rank: int, size: int) -> tuple[int, ...]:
    """Return the other ranks in the order in which `rank` stores their data.

    Ascending, except that the last rank stands in the place of `rank` itself: from a gathered
    tensor of `size` blocks the own one is then removed by copying one block, not by moving all
    that follow.
    """
    return tuple(size - 1 if place == rank else place for place in range(size - 1))
