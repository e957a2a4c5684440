"""Rows of a phase: the tasks that its instructions become, before they have costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats


@dataclass(frozen=True, slots=True)
class Row:
    """One task of a phase: an instruction, or a part of one.

    Attributes:
        instruction: Index of the instruction.
        share: Share of its work.
        stream: Where it runs.
        depends: Rows that it waits for.
        hidden: The part of a collective that runs alongside its product.
        latency_share: Latencies of a collective that it has.
        begins, ends: Whether the instruction's temporary memory is taken, and given back, with it.
        entry: Whether it waits for what the block is given; None: as the instruction says.
        collapsed: It stands for all blocks of a ring attention and their transfers.
        slower: Time of its work over what the instruction has as a whole: a product in pieces.
        collective_cpu_shares: Collectives whose share of processors' time it gives up while they
            run alongside it.
    """

    instruction: int
    share: float
    stream: int
    depends: tuple[int, ...]
    hidden: bool
    latency_share: float = 1.0
    begins: bool = True
    ends: bool = True
    entry: bool | None = None
    collapsed: bool = False
    slower: float = 1.0
    collective_cpu_shares: tuple[tuple[int, float], ...] = ()

    def work_s(self, work_s: Floats, processor_s: Floats) -> Floats:
        """Return the time of its work when alone, of one strategy or of several. [s]

        Args:
            work_s: Of every instruction, `(instructions, ...)`. [s]
            processor_s: That collectives take, likewise. [s]
        """
        found = self.share * self.slower * work_s[self.instruction]
        for instruction, share in self.collective_cpu_shares:
            found = found + share * processor_s[instruction]
        return np.asarray(found)
