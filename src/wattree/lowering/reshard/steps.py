"""Steps of a layout change on devices: senders, receivers and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.lowering.reshard.moves import MoveKind
from wattree.lowering.reshard.placement import (
    DeviceGrid,
    TensorPlacement,
    common,
    regions,
    volumes,
)

#: Sender, receiver → how far apart they are; the nearest holder of a part sends it.
Distance = Callable[[Integers, Integers], Integers]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardMessage:
    """A part of a tensor that one device sends to another.

    Attributes:
        region: First and last index but one of every dim.
    """

    sender: int
    receiver: int
    region: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardStep:
    """One step of a layout change.

    Attributes:
        axes: Axes of the mesh that it runs over; none of messages.
        source, target: Devices before and after; the same but for messages to another mesh.
        shape: Of the whole tensor.
    """

    kind: MoveKind
    axes: tuple[str, ...]
    source: DeviceGrid
    target: DeviceGrid
    before: TensorPlacement
    after: TensorPlacement
    shape: tuple[int, ...]

    @property
    def held(self) -> Integers:
        """Parts of the ranks before the step."""
        return regions(self.source.mesh, self.before, self.shape)

    @property
    def wanted(self) -> Integers:
        """Parts of the ranks after it."""
        return regions(self.target.mesh, self.after, self.shape)

    @property
    def sent_elements(self) -> int:
        """Elements that all devices together send, or receive.

        Of `n` summands of a part, `n - 1` go to whom adds them up; sums go to `n - 1` others.
        """
        if self.kind is MoveKind.LOCAL:
            return 0
        others = self.source.mesh.size(self.axes) - 1
        if self.kind is MoveKind.REDUCE_SCATTER:
            return others * int(volumes(self.wanted).sum())
        if self.kind is MoveKind.ALL_REDUCE:
            return 2 * others * int(volumes(self.wanted).sum()) // (others + 1)
        wanted, own = self.wanted, self.own()
        return int(volumes(wanted).sum() - volumes(common(wanted, own)).sum())

    def own(self) -> Integers:
        """Return the part that each device of the target had before; empty if it had none."""
        if self.source.devices == self.target.devices:
            return self.held
        place = {device: rank for rank, device in enumerate(self.source.devices)}
        held, own = self.held, np.zeros_like(self.wanted)
        for rank, device in enumerate(self.target.devices):
            if device in place:
                own[rank] = held[place[device]]
        return own

    def messages(self, distance: Distance) -> tuple[ReshardMessage, ...]:
        """Return sender, receiver and data of a step of messages; as `sent`."""
        return tuple(
            ReshardMessage(
                sender=sender, receiver=receiver, region=tuple((low, high) for low, high in region)
            )
            for sender, receiver, region in zip(
                *(each.tolist() for each in self.sent(distance)), strict=True
            )
        )

    def sent(self, distance: Distance) -> tuple[Integers, Integers, Integers]:
        """Return sender, receiver and region of each message, `(m,)`, `(m,)` and `(m, dims, 2)`.

        Each part comes from the nearest device that has it; of several, receivers take turns.
        """
        held, wanted, own = self.held, self.wanted, self.own()
        senders, receivers = np.array(self.source.devices), np.array(self.target.devices)
        summand, wants = self._summands(self.source), self._summands(self.target)
        keys = np.column_stack([summand, held.reshape(len(held), -1)])
        parts, part_of = np.unique(keys, axis=0, return_inverse=True)
        found = []
        for number, key in enumerate(parts):
            part = key[1:].reshape(-1, 2)
            needed = common(wanted, part)
            kept = (own == part).all(axis=(1, 2))
            ranks = np.flatnonzero((volumes(needed) > 0) & ~kept & (wants == key[0]))
            holders = senders[part_of.ravel() == number]
            turn = (np.arange(len(holders))[:, None] - np.arange(len(ranks))) % len(holders)
            far = distance(holders[:, None], receivers[ranks][None, :]) * len(holders) + turn
            found.append((holders[far.argmin(axis=0)], receivers[ranks], needed[ranks]))
        from_, to, what = (np.concatenate(each) for each in zip(*found, strict=True))
        return from_, to, what

    def _summands(self, grid: DeviceGrid) -> Integers:
        """Return which summand each rank holds: summands stay with ranks that hold the same."""
        number = np.zeros(grid.mesh.ranks, dtype=np.int64)
        for axis in sorted(self.before.partial):
            number = number * grid.mesh.degree(axis) + grid.mesh.coordinates()[axis]
        return number
