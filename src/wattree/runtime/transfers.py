"""Collectives in flight, and counters of sent bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from wattree.runtime.group import Group


class TransferWork(NamedTuple):
    """One operation of torch.distributed.

    Attributes:
        doing: In words, what it does.
        holds: Whether waiting for it holds up the program; otherwise it orders streams of a device,
            and the backend's own watchdog ends what hangs.
    """

    handle: Any
    doing: str
    holds: bool = True


#: Reduce-scatters have a tag of their own: a gather that is in flight sends most of its messages
#: later, and would else be given those of a reduce-scatter that began after it.
_SCATTER_TAG = 7742
#: That of a receive, and what moves the received to where it belongs.
Receipt = tuple[TransferWork, Callable[[], None]]


@dataclass(slots=True)
class SentTraffic:
    """Traffic that this rank has sent since the last `reset`.

    Attributes:
        sent_bytes: Collective → payload that left this rank, without headers. [B]
        calls: Collective → calls.
    """

    sent_bytes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """Return all payload sent. [B]"""
        return sum(self.sent_bytes.values())

    def add(self, collective: str, sent_bytes: int) -> None:
        """Count one call."""
        self.sent_bytes[collective] = self.sent_bytes.get(collective, 0) + sent_bytes
        self.calls[collective] = self.calls.get(collective, 0) + 1

    def reset(self) -> None:
        """Reset the counters."""
        self.sent_bytes.clear()
        self.calls.clear()


class TransferWatch(Protocol):
    """Interface that is called when a group waited, for measurements."""

    def mark(self) -> Any:
        """Return a mark of now."""
        ...

    def waited(self, place: str, begun: Any, since: Any, until: Any) -> None:
        """Take a collective of a layer that was begun, and waited for from one mark to another."""
        ...


class Pending:
    """A collective in flight; `wait` returns its result, once."""

    def __init__(
        self, group: Group, works: Sequence[TransferWork], finish: Callable[[], Tensor], place: str
    ) -> None:
        self._group, self._works, self._finish, self._place = group, works, finish, place
        self._begun = _mark(group)

    def unless(self, overlap: bool) -> Pending:  # noqa: FBT001 - reads as a sentence
        """Return itself, still in flight if `overlap`, otherwise ended."""
        if not overlap:
            self._await()
        return self

    def wait(self) -> Tensor:
        """Return the result.

        Raises:
            CommunicationError: A peer is missing; names the layer, this rank and the peer.
        """
        self._await()
        return self._finish()

    def _await(self) -> None:
        _await_all(self._group, self._works, self._place, self._begun)
        self._works = ()


class Gathering:
    """An all-gather whose parts are used as they arrive.

    The own part goes to one peer after the other, so that what is received first is complete while
    the rest is still on its way.

    Attributes:
        buffer: The result; a block is valid once `arriving` has named its rank, the own one at
            once.
    """

    def __init__(
        self, group: Group, part: Tensor, buffer: Tensor, sizes: Sequence[int], place: str
    ) -> None:
        self.buffer = buffer
        self._group, self._part, self._place = group, part, place
        self._begun = _mark(group)
        blocks = buffer.split(list(sizes))
        blocks[group.rank].copy_(part)
        steps = range(1, group.size)
        self._targets = [(group.rank + step) % group.size for step in steps]
        self._sources = [(group.rank - step) % group.size for step in steps]
        self._receipts = [group.receive(blocks[source], source, place) for source in self._sources]
        self._sent = [group.send(part, self._targets[0], place)]

    def arriving(self) -> Iterator[int]:
        """Yield the peers, each when its block is there."""
        for step, source in enumerate(self._sources):
            work, stage = self._receipts[step]
            works = [work, self._sent[step]]
            self._begun = _await_all(self._group, works, self._place, self._begun)
            stage()
            if step + 1 < len(self._targets):
                self._sent.append(
                    self._group.send(self._part, self._targets[step + 1], self._place)
                )
            yield source


class Scattering:
    """A reduce-scatter that sends blocks as they are computed.

    Fill `block(rank)` for every rank, say `send(rank)` after each, then `wait` for the sum.

    Attributes:
        order: Ranks in the order in which blocks are best made: the peers, then the own one.
    """

    def __init__(self, group: Group, buffer: Tensor, sizes: Sequence[int], place: str) -> None:
        self._group, self._place, self.buffer = group, place, buffer
        self._begun = _mark(group)
        self._blocks = buffer.split(list(sizes))
        self.order = [(group.rank + step) % group.size for step in range(1, group.size + 1)]
        own = self._blocks[group.rank]
        self._received = own.new_empty((group.size - 1, *own.shape))
        peers = [rank for rank in range(group.size) if rank != group.rank]
        self._receipts = [
            group.receive(block, peer, place, _SCATTER_TAG)
            for peer, block in zip(peers, self._received, strict=True)
        ]
        self._sent: list[TransferWork] = []
        self._is_done = False

    def block(self, rank: int) -> Tensor:
        """Return the receive buffer of `rank`."""
        return self._blocks[rank]

    def send(self, rank: int) -> None:
        """Send the block of `rank`, which stays as it is from now on."""
        if rank != self._group.rank:
            block = self._blocks[rank]
            self._sent.append(self._group.send(block, rank, self._place, _SCATTER_TAG))

    def unless(self, overlap: bool) -> Scattering:  # noqa: FBT001 - reads as a sentence
        """Return itself, still in flight if `overlap`, otherwise ended."""
        if not overlap:
            self._await()
        return self

    def wait(self) -> Tensor:
        """Return the sum over ranks in a new buffer; the own block is added last."""
        self._await()
        for _, stage in self._receipts:
            stage()
        return self._received.sum(0).add_(self._blocks[self._group.rank])

    def _await(self) -> None:
        if not self._is_done:  # a receipt can be awaited once
            works = [work for work, _ in self._receipts]
            _await_all(self._group, [*works, *self._sent], self._place, self._begun)
            self._is_done = True


class NativeGathering:
    """As `Gathering`, for backends whose own collective is fastest: all parts arrive at once."""

    def __init__(self, group: Group, buffer: Tensor, work: TransferWork, place: str) -> None:
        self.buffer = buffer
        self._group, self._work, self._place = group, work, place
        self._begun = _mark(group)

    def arriving(self) -> Iterator[int]:
        """Yield the peers."""
        _await_all(self._group, [self._work], self._place, self._begun)
        yield from self._group.peers


class NativeScattering:
    """As `Scattering`, on such a backend: the collective starts when all blocks are made."""

    def __init__(
        self, group: Group, buffer: Tensor, sizes: Sequence[int], start: Callable[[], Pending]
    ) -> None:
        self.buffer = buffer
        self._blocks, self._start = buffer.split(list(sizes)), start
        self._missing = set(range(group.size))
        self._pending: Pending | None = None
        self.order = list(range(group.size))

    def block(self, rank: int) -> Tensor:
        """Return the buffer for the block of `rank`."""
        return self._blocks[rank]

    def send(self, rank: int) -> None:
        """Mark the block of `rank` as computed."""
        self._missing.discard(rank)
        if not self._missing:
            self._pending = self._start()

    def unless(self, overlap: bool) -> NativeScattering:  # noqa: FBT001 - reads as a sentence
        """Return itself, still in flight if `overlap`, otherwise ended."""
        assert self._pending is not None
        self._pending.unless(overlap)
        return self

    def wait(self) -> Tensor:
        """Return the sum over ranks."""
        assert self._pending is not None
        return self._pending.wait()


def _mark(group: Group) -> Any:
    return None if group.watch is None else group.watch.mark()


def _await_all(group: Group, works: Sequence[TransferWork], place: str, begun: Any) -> Any:
    """Wait for all; return a mark of the end for who watches."""
    since = _mark(group)
    for work in works:
        group.await_work(work, place)
    until = _mark(group)
    if group.watch is not None and works and begun is not None:
        group.watch.waited(place, begun, since, until)
    return until
