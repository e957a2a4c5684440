"""Rows of a phase: the tasks that its steps become, before they have costs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One task of a phase: a step, or a part of one.

    Attributes:
        step: Index of the step.
        share: Share of its work.
        stream: Where it runs.
        depends: Rows that it waits for.
        hidden: The part of a collective that runs beside its product, without latency.
        latency_share: Share of a collective's latency.
        begins, ends: Whether the step's temporary memory is taken, and given back, with it.
        entry: Whether it waits for what the block is given; None: as the step says.
        collapsed: It stands for all blocks of a ring attention and their transfers.
    """

    step: int
    share: float
    stream: int
    depends: tuple[int, ...]
    hidden: bool
    latency_share: float = 1.0
    begins: bool = True
    ends: bool = True
    entry: bool | None = None
    collapsed: bool = False
