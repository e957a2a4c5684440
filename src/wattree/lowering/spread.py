"""The parts of a block that other rules than its loops split, for checks against degrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from wattree.arrays import Floats, Integers

#: Factor of a `TokenLoad` that a local size has; "" where all ranks have as much.
Routed = Literal["", "tokens", "vectors", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoad:
    """How unevenly work is spread over the ranks that hold experts, or own operators, `(n,)` each.

    Attributes:
        tokens: That a rank's experts get, or lookups in its tables, over the mean.
        ports: What exchanging them sends through the rank's ports, over an even exchange.
        busiest: The largest of `ports` in its group, which ends the exchange.
        leader: Entry of the busiest rank, for which the others wait.
        vectors: Results of what a rank owns, over the mean: of a bag one, however many rows it
            sums. None where nothing is owned.
        held: Parameters of what a rank owns, over the mean; None where nothing is owned.
        first: 1 for the first rank where it alone updates, 0 for others; None where all update.
    """

    tokens: Floats
    ports: Floats
    busiest: Floats
    leader: Integers
    vectors: Floats | None = None
    held: Floats | None = None
    first: Floats | None = None

    def factor(self, routed: Routed) -> Floats | float:
        """Return what a size has over the mean, `(n,)`."""
        factor = getattr(self, routed) if routed else None
        return 1.0 if factor is None else np.asarray(factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlace:
    """How a block spreads its experts.

    Attributes:
        experts: How many there are.
        axes: Mesh axes over which they are spread, outermost first.
    """

    experts: int
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedOperator:
    """An operator that is whole on one rank.

    Attributes:
        axes: Mesh axes of whose ranks one has it.
        lookups: Elements of them that a sample reads.
        vectors: Elements of the results for a sample.
        shared_out: Which rank has it is free to choose; otherwise it is the first.
    """

    path: str
    axes: tuple[str, ...]
    elements: float
    lookups: float
    vectors: float
    shared_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPart:
    """A window over a dim that is split, for checks against degrees.

    Attributes:
        dim: Over which it slides.
        axes: Mesh axes that split it.
        outputs: Output rows of all ranks together.
        stride: Input rows from one output row to the next.
        edge_rows: Input rows that one neighbour has to have, at most.
    """

    path: str
    dim: str
    axes: tuple[str, ...]
    outputs: float
    stride: float
    edge_rows: float
