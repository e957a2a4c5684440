"""Means over all ranks, through sums over the processes of each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wattree.errors import CommunicationError
from wattree.runtime.reduce.mean import Across, averaged_, made_small_, pieces_of
from wattree.runtime.reduce.meeting import MemberMeeting
from wattree.runtime.reduce.shared_buffers import SharedBuffers

#: Types of gradients, by the number that stands for them.
_KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
#: Shares of the elements begin at multiples of so many, so that no two processes write to one line
#: of the cache.
_ALIGNED = 64


class Hierarchical:
    """Averages over all ranks: on each device in shared memory, between devices by leaders.

    Every process of a device adds up its share of the elements over all processes, in the order of
    ranks, so that sums are the same in every run; the leader exchanges sums with other leaders.

    Args:
        buffers: Two sets, for one bucket after another: when a process comes to use a set again,
            all others have come to the bucket in between, and so have read the one before.
        across: To the other devices; None on processes that do not lead, and for one device.
        compressed: Whether gradients travel as bfloat16; they are added up in float32.
    """

    def __init__(
        self,
        meeting: MemberMeeting,
        buffers: tuple[SharedBuffers, SharedBuffers],
        across: Across | None,
        *,
        devices: int,
        ranks: int,
        compressed: bool = False,
    ) -> None:
        self._meeting, self._buffers, self._across = meeting, buffers, across
        self._devices, self._ranks, self.compressed = devices, ranks, compressed
        self._turn = 0

    def average_(self, bucket: Tensor, number: int) -> None:
        """Replace gradients by their mean over all ranks.

        Args:
            bucket: `(elements,)`, floating; those of this rank.
            number: Of the bucket in the step, from 0.

        Raises:
            CommunicationError: A rank is missing, or ranks bring different buckets.
        """
        doing = f"averaging bucket {number} of the gradients"
        buffers = self._buffers[self._turn]
        self._turn = 1 - self._turn
        buffer = buffers.of(bucket.numel(), torch.bfloat16 if self.compressed else bucket.dtype)
        share = self._share(bucket.numel())
        made_small_(bucket, self._ranks)
        _bring(bucket, buffer[self._meeting.place], share)
        self._meeting.say(elements=bucket.numel(), kind=_KINDS.index(bucket.dtype), number=number)
        buffers.settle()
        self._meeting.meet(doing)
        self._check_alike(doing)
        _add_up(bucket[share], self._meeting.place, [each[share] for each in buffer])
        buffers.settle()
        self._meeting.meet(doing)
        if self._devices > 1:
            if self._across is not None:
                self._across.sum_(buffer[0])
            buffers.settle()
            self._meeting.meet(doing, of=(0,))
        averaged_(bucket, buffer[0], self._ranks)

    def close(self) -> None:
        """Release memory, and notify processes that wait for this one."""
        self._meeting.close()
        for buffers in self._buffers:
            buffers.close()

    def fail(self, rank: int) -> None:
        """Notify the other processes of the device which rank failed."""
        self._meeting.fail(rank)

    def _share(self, elements: int) -> slice:
        """Return the elements that this process sums."""
        part = -(-elements // len(self._meeting.ranks))
        part = -(-part // _ALIGNED) * _ALIGNED
        begin = self._meeting.place * part
        return slice(min(begin, elements), min(begin + part, elements))

    def _check_alike(self, doing: str) -> None:
        """Compare what members bring; all notes are read before any is written again.

        Raises:
            CommunicationError: Members brought different buckets.
        """
        notes, ranks = self._meeting.notes(), self._meeting.ranks
        brought = [(note.number, note.elements, note.kind) for note in notes]
        if len(set(brought)) > 1:
            colocation = ", ".join(
                f"rank {rank} brings bucket {number} of {elements} "
                f"{str(_KINDS[kind]).removeprefix('torch.')}"
                for (number, elements, kind), rank in zip(brought, ranks, strict=True)
            )
            raise CommunicationError(
                f"rank {ranks[self._meeting.place]}, {doing}: ranks disagree: {colocation}; "
                f"they run different models, or different parts of one"
            )


def _bring(bucket: Tensor, buffer: Tensor, share: slice) -> None:
    """Copy the parts that others add up to shared memory; this process's own part stays."""
    for part in (slice(0, share.start), slice(share.stop, bucket.numel())):
        for into, piece in zip(pieces_of(buffer[part]), pieces_of(bucket[part]), strict=True):
            into.copy_(piece)


def _add_up(own: Tensor, place: int, buffers: Sequence[Tensor]) -> None:
    """Add up a share over all members, in their order, into the room of the first.

    No one else reads or writes this share of the first room meanwhile. Types of two bytes are added
    up in float32, and rounded once.
    """
    parts = [own if member == place else buffer for member, buffer in enumerate(buffers)]
    for into, *pieces in zip(
        pieces_of(buffers[0]), *(pieces_of(part) for part in parts), strict=True
    ):
        if into.element_size() > 2:
            _sum(pieces, into)
        else:
            into.copy_(_sum([piece.float() for piece in pieces], None))


def _sum(pieces: Sequence[Tensor], into: Any) -> Tensor:
    first, second, *others = pieces
    total = torch.add(first, second, out=into)
    for piece in others:
        total.add_(piece)
    return total
