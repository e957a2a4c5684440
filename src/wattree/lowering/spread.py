"""The parts of a block that other rules than its loops split, for checks against degrees."""

from __future__ import annotations

from dataclasses import dataclass


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
        shared_out: Which rank has it is free to choose; otherwise it is the first.
    """

    path: str
    axes: tuple[str, ...]
    elements: float
    lookups: float
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
