"""Strategies with phantom layers: what `plan` tries where another function may be trained.

Ghosts are taken from a small grid between two counts (docs/design/0022-phantom-in-the-tree.md).
With `n / p**2` the parameters are at most twice a p-th of the model's; with a quarter of what a
rank holds, as much as four ranks' ghosts fill, little is left of what phantom layers save. Counts
that save no weights are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from wattree.graph import ModelGraph
from wattree.strategy import StrategyOptions
from wattree.strategy.parts import row_dim
from wattree.strategy.presets.phantom import phantom_parallel

#: Of data-parallel state: what ZeRO-2 and hybrids save between these is not worth their number.
_SHARDINGS = ("none", "zero1", "zero3")
_RECOMPUTATIONS = ("none", "full")
#: Counts of ghosts are rounded to this where they are large enough, as matrix units like them.
_ROUND = 8


def phantom_options(
    model: ModelGraph, ranks: Sequence[int], shardings: Sequence[str], recomputations: Sequence[str]
) -> Iterator[StrategyOptions]:
    """Yield options with phantom layers, each for the degree of `tp` that it says.

    Args:
        ranks: Degrees of `tp`.
        shardings, recomputations: That may be tried at all.
    """
    width = _narrowest(model)
    if width is None:
        return
    stored = [name for name in _SHARDINGS if name in shardings]
    again = [name for name in _RECOMPUTATIONS if name in recomputations]
    for degree in sorted({degree for degree in ranks if degree > 1}):
        for ghosts, sharding, recompute in itertools.product(
            ghost_counts(width, degree), stored, again
        ):
            yield StrategyOptions(
                phantom=True, ghosts=ghosts, tp=degree, sharding=sharding, recompute=recompute
            )


def ghost_counts(width: int, ranks: int) -> tuple[int, ...]:
    """Return the ghosts to try for layers of `width` over `ranks`, fewest first.

    The ends of the grid are `n / p**2` and `m / 4`, the third is their geometric mean.
    """
    own = width // ranks
    few, many = sorted((width / ranks**2, own / 4))
    most = own * (1 - 1 / ranks)  # weights are fewer below it
    found = {_rounded(count) for count in (few, math.sqrt(few * many), many)}
    return tuple(sorted(count for count in found if 0 < count < most))


def _rounded(count: float) -> int:
    if count < _ROUND:
        return max(1, round(count))
    return round(count / _ROUND) * _ROUND


def _narrowest(model: ModelGraph) -> int | None:
    """Return the inputs of the narrowest layer that would become a phantom layer, if any would."""
    tree = phantom_parallel(StrategyOptions(phantom=True, ghosts=1), model)
    widths = []
    for path, block in {i.path: i.block for i in model.instances}.items():
        near = tree.below(path)
        for operator in model.blocks[block].operators:
            row = row_dim(operator)
            if row and near.choices(f"{path}.{operator.path}").phantom is not None:
                widths.append(round(operator.dim(row).extent.coefficient))
    return min(widths, default=None)
