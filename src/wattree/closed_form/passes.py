"""A pass of a micro-batch through a stage, and the traffic between replicas alongside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wattree.arrays import Floats
from wattree.closed_form.replica_traffic import PORTS
from wattree.closed_form.slowdown import OverlapSlowdown
from wattree.closed_form.stage_sums import StageSums


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """A pass of a micro-batch through each kind of stage, `(rows,)` each. [s]

    Traffic between replicas runs alongside the computation of blocks and alongside their
    collectives. With those it shares ports: of the time that both run, `contention` is lost.

    Attributes:
        span: Without other traffic.
        computed: Of it, computation.
        moved: Collectives of blocks, those that computation hides as well.
        contention: Share that other traffic loses, and makes them lose, 0 on other ports. [1]
        slowdown: Table of traffic → how it and computation slow each other.
    """

    span: Floats
    computed: Floats
    moved: Floats | float
    contention: Floats | float
    slowdown: Callable[[str], OverlapSlowdown]

    @cached_property
    def computed_share(self) -> Floats:
        """Share of the pass that is computation, `(rows,)`; one figure where all of it is."""
        if self.computed is self.span:
            return np.ones(())
        return np.asarray(self.computed / np.maximum(self.span, 1e-30))

    def slowed(self, name: str) -> Floats:
        """Return by how much a second of traffic that it hides prolongs it, `(rows,)`. [s]"""
        computed = self.computed_share
        return np.asarray(self.slowdown(name).lost_s(computed) + self.contention * (1.0 - computed))

    def waited_s(self, name: str) -> Floats:
        """Return by how much the pass, if it ends first, delays traffic, `(rows,)`. [s]"""
        delay = self.slowdown(name).waited_s(self.computed)
        return np.asarray(delay + self.contention * self.moved)

    def waited_share(self, name: str) -> Floats:
        """Return that delay for a second of the pass, `(rows,)` or one figure. [s]"""
        if self.computed is self.span:
            return np.minimum(self.slowdown(name).waited_s(np.ones(())), 1.0)
        return np.minimum(self.waited_s(name) / np.maximum(self.span, 1e-30), 1.0)


def contention(sums: StageSums) -> Floats | float:
    """Return the share of concurrent time that traffic and collectives of blocks lose, `(rows,)`.

    Ports that both keep busy all the time carry one after the other; those that one does not need,
    or not more than the other leaves, carry both at once.
    """
    if "moved" in sums.nothing or "block_moved" in sums.nothing:
        return 0.0
    ports = [port for port in PORTS if not sums.nothing & {port, f"moved_{port}"}]
    moved = sums.of_blocks("block_moved"), sums.of_storage("moved")
    busy = ((sums.of_blocks(port), sums.of_storage(f"moved_{port}")) for port in ports)
    return _lost(moved, busy)


def crowding(sums: StageSums) -> Floats | float:
    """Return the same of gathers of parameters and the reductions alongside them, `(rows,)`."""
    if "gather" in sums.nothing or sums.nothing >= {"every", "once"}:
        return 1.0
    gather, moved = sums.of_storage("gather"), sums.of_storage("moved")
    busy = (
        (one := sums.of_storage(f"gather_{port}"), sums.of_storage(f"moved_{port}") - one)
        for port in PORTS
        if f"gather_{port}" not in sums.nothing
    )
    return _lost((gather, moved - gather), busy)


def _lost(lasts: tuple[Floats, Floats], busy: Iterable[tuple[Floats, Floats]]) -> Floats:
    """Return the share of concurrent time that two kinds of traffic lose, `(rows,)`.

    Args:
        lasts: Time of each. [s]
        busy: For how long each keeps ports busy, by kind of port. [s]
    """
    one, other = (np.maximum(each, 1e-30) for each in lasts)
    found = np.zeros(len(one))
    for ours, theirs in busy:
        np.maximum(found, ours / one + theirs / other - 1.0, out=found)
    return found
