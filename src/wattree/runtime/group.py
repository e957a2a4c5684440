"""A process group as layers use it: uneven parts, started early and awaited late, bytes counted.

On gloo everything but the all-reduce is pairwise sends and receives: gloo's own reduce-scatter
moves the bytes of an all-reduce, its all-gather takes no uneven parts, and of a pair it is known
which peer is missing. On NCCL the native collectives are used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.errors import CommunicationError
from wattree.runtime.shards import peers_of

__all__ = ["Group", "Pending", "Traffic", "Watch"]

#: Time that a peer has, unless a group says otherwise; ten times less than gloo's own. [s]
_PATIENCE_S = 180.0
#: Bytes of what a rank says of itself when ranks compare.
_FACTS_BYTES = 1024
#: Tags of messages on gloo, so that a comparison never meets the data of a layer.
_DATA_TAG, _FACTS_TAG = 0, 1


@dataclass(slots=True)
class Traffic:
    """What this rank has sent since the last `reset`.

    Attributes:
        sent_bytes: Collective → payload that left this rank, without headers. [B]
        calls: Collective → calls.
        waited_s: Time in which the program waited for others and did nothing else; only where
            waiting holds up the program (gloo), not on devices with streams of their own. [s]
    """

    sent_bytes: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    waited_s: float = 0.0

    @property
    def total_bytes(self) -> int:
        """Return all payload sent. [B]"""
        return sum(self.sent_bytes.values())

    def add(self, collective: str, sent_bytes: int) -> None:
        """Count one call."""
        self.sent_bytes[collective] = self.sent_bytes.get(collective, 0) + sent_bytes
        self.calls[collective] = self.calls.get(collective, 0) + 1

    def reset(self) -> None:
        """Begin anew."""
        self.sent_bytes.clear()
        self.calls.clear()
        self.waited_s = 0.0


class Watch(Protocol):
    """Told when a group waited, for those who measure."""

    def mark(self) -> Any:
        """Return a mark of now."""
        ...

    def waited(self, place: str, begun: Any, since: Any, until: Any) -> None:
        """Take a collective of a layer that was begun, and waited for from one mark to another."""
        ...


class Pending:
    """A collective in flight; `wait` returns its result, once."""

    def __init__(
        self,
        group: Group,
        works: Sequence[tuple[Any, str]],
        finish: Callable[[], Tensor],
        place: str,
    ) -> None:
        self._group, self._works, self._finish, self._place = group, works, finish, place
        self._begun = group.watch.mark() if group.watch is not None else None

    def finish_now(self) -> None:
        """Wait here already; `wait` will return at once."""
        self._await()

    def wait(self) -> Tensor:
        """Return the result.

        Raises:
            CommunicationError: A peer is missing; names the layer, this rank and the peer.
        """
        self._await()
        return self._finish()

    def _await(self) -> None:
        watch, begin_s = self._group.watch, time.perf_counter()
        since = watch.mark() if watch is not None else None
        for work, doing in self._works:
            self._group.await_work(work, doing, self._place)
        self._group.traffic.waited_s += time.perf_counter() - begin_s
        if watch is not None and self._works:
            watch.waited(self._place, self._begun, since, watch.mark())
        self._works = ()


class Group:
    """Ranks that share a layer.

    Args:
        process_group: Of torch.distributed; None is all ranks, or this process alone where
            torch.distributed has not been started.
        timeout_s: Time after which a peer counts as missing. [s]

    Attributes:
        rank: Of this process, in the group.
        size: Ranks of the group.
        backend: Such as `gloo` and `nccl`; `none` for a process alone.
        traffic: What was sent. Layers that share a group are counted together.
        watch: Told of every wait; None tells nobody.
    """

    def __init__(self, process_group: Any = None, *, timeout_s: float = _PATIENCE_S) -> None:
        self.timeout_s, self.traffic = timeout_s, Traffic()
        self.watch: Watch | None = None
        is_alone = process_group is None and not (dist.is_available() and dist.is_initialized())
        self.process_group = None if is_alone else process_group or dist.group.WORLD
        self.rank, self.size, self.backend, self._ranks = 0, 1, "none", [0]
        if self.process_group is not None:
            self.rank = dist.get_rank(self.process_group)
            self.size = dist.get_world_size(self.process_group)
            self.backend = str(dist.get_backend(self.process_group))
            self._ranks = dist.get_process_group_ranks(self.process_group)
        self.peers = peers_of(self.rank, self.size)

    @classmethod
    def of(cls, given: Any) -> Group:
        """Return the group of a `Group`, a `ProcessGroup`, a 1-D `DeviceMesh`, or None for all."""
        if isinstance(given, Group):
            return given
        if hasattr(given, "get_group"):  # a mesh; one of several dims refuses with its own words
            return cls(given.get_group())
        return cls(given)

    def __deepcopy__(self, _: Any) -> Group:
        """Return itself: a copied model talks to the same peers."""
        return self

    def gather_peers(self, part: Tensor, place: str) -> Pending:
        """Start an all-gather without the own part, of parts of one shape.

        Args:
            part: `(k, …)`, contiguous, of this rank.
            place: Of the layer, for messages.

        Returns:
            Result `((size - 1) k, …)`, blocks in the order of `peers`.
        """
        rows = part.shape[0]
        self.traffic.add("all_gather", (self.size - 1) * _bytes(part))
        if self._is_pairwise:
            room = part.new_empty((len(self.peers) * rows, *part.shape[1:]))
            into = dict(zip(self.peers, room.split(rows), strict=True))
            return self._exchange(dict.fromkeys(self.peers, part), into, lambda: room, place)
        room = part.new_empty((self.size * rows, *part.shape[1:]))
        work = _all_gather(room, part, self.process_group)

        def finish() -> Tensor:
            if self.rank < self.size - 1:
                own = room[self.rank * rows : (self.rank + 1) * rows]
                own.copy_(room[(self.size - 1) * rows :])
            return room[: (self.size - 1) * rows]

        return Pending(self, [(work, "all-gather")], finish, place)

    def room_for_peers(self, rows: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return room for what `scatter_to_peers` sends, and the part of it that is to be filled.

        The part is `((size - 1) rows, columns)`, blocks in the order of `peers`.
        """
        blocks = self.size - 1 if self._is_pairwise else self.size
        room = like.new_empty((blocks * rows, columns))
        return room, room[: (self.size - 1) * rows]

    def scatter_to_peers(self, room: Tensor, rows: int, place: str) -> Pending:
        """Start a reduce-scatter in which nobody gives anything to itself.

        Args:
            room: From `room_for_peers`, filled.
            rows: Of one block.
            place: Of the layer, for messages.

        Returns:
            Result `(rows, columns)`: the sum of what the peers hold for this rank, in rank order.
        """
        block_bytes = rows * _bytes(room[0])
        self.traffic.add("reduce_scatter", (self.size - 1) * block_bytes)
        if self._is_pairwise:
            # Received in ascending order, so that sums do not depend on who is asked.
            into_room = torch.empty_like(room)
            into = dict(zip(sorted(self.peers), into_room.split(rows), strict=True))
            out = dict(zip(self.peers, room.split(rows), strict=True))
            return self._exchange(
                out, into, lambda: into_room.view(-1, rows, room.shape[1]).sum(0), place
            )
        own = room[self.rank * rows : (self.rank + 1) * rows]
        if self.rank < self.size - 1:
            room[(self.size - 1) * rows :].copy_(own)
        own.zero_()
        return self.reduce_scatter(room, [rows] * self.size, place, count=False)

    def all_gather(self, part: Tensor, sizes: Sequence[int], place: str) -> Pending:
        """Start an all-gather of parts that differ in their first dim.

        Args:
            part: `(sizes[rank], …)`, contiguous.
            sizes: First dim on every rank.
            place: Of the layer, for messages.

        Returns:
            Result `(sum(sizes), …)`, in rank order.
        """
        room = part.new_empty((sum(sizes), *part.shape[1:]))
        blocks = room.split(list(sizes))
        self.traffic.add("all_gather", (self.size - 1) * _bytes(part))
        if self.size == 1 or self._is_pairwise:
            blocks[self.rank].copy_(part)
            into = {peer: blocks[peer] for peer in self.peers}
            return self._exchange(dict.fromkeys(self.peers, part), into, lambda: room, place)
        if len(set(sizes)) == 1:
            work = _all_gather(room, part, self.process_group)
        else:
            work = dist.all_gather(list(blocks), part, group=self.process_group, async_op=True)
        return Pending(self, [(work, "all-gather")], lambda: room, place)

    def reduce_scatter(
        self, whole: Tensor, sizes: Sequence[int], place: str, *, count: bool = True
    ) -> Pending:
        """Start a reduce-scatter over the first dim.

        Args:
            whole: `(sum(sizes), …)`, contiguous.
            sizes: Rows that every rank gets.
            place: Of the layer, for messages.
            count: Whether to count its bytes.

        Returns:
            Result `(sizes[rank], …)`: the sum over ranks, in rank order.
        """
        blocks = whole.split(list(sizes))
        own = blocks[self.rank]
        if count:
            self.traffic.add("reduce_scatter", _bytes(whole) - _bytes(own))
        if self.size == 1:
            return Pending(self, [], lambda: own, place)
        if self._is_pairwise:
            room = whole.new_empty((self.size, *own.shape))
            into = {peer: room[peer] for peer in self.peers}
            out = {peer: blocks[peer] for peer in self.peers}
            room[self.rank].copy_(own)
            return self._exchange(out, into, lambda: room.sum(0), place)
        result = torch.empty_like(own)
        if len(set(sizes)) == 1:
            work = _reduce_scatter(result, whole, self.process_group)
        else:
            work = dist.reduce_scatter(
                result, list(blocks), group=self.process_group, async_op=True
            )
        return Pending(self, [(work, "reduce-scatter")], lambda: result, place)

    def all_reduce(self, tensor: Tensor, place: str) -> Pending:
        """Start a sum over ranks, in place; the result is `tensor`."""
        if self.size == 1:
            return Pending(self, [], lambda: tensor, place)
        self.traffic.add("all_reduce", round(2 * (self.size - 1) * _bytes(tensor) / self.size))
        work = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        return Pending(self, [(work, "all-reduce")], lambda: tensor, place)

    def compare(self, facts: Mapping[str, Any], place: str, device: Any) -> list[dict[str, Any]]:
        """Return what every rank says of itself; not counted as traffic.

        Args:
            facts: What all ranks should agree on, and what others want to know (names that
                begin with `own_`). Plain values.
            place: Of the layer.
            device: Of the tensors to come.

        Raises:
            CommunicationError: Ranks disagree, or do not answer.
        """
        said = json.dumps(facts, sort_keys=True).encode()
        assert len(said) <= _FACTS_BYTES, said
        part = torch.zeros(1, _FACTS_BYTES, dtype=torch.uint8)
        part[0, : len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        room = torch.zeros(self.size, _FACTS_BYTES, dtype=torch.uint8)
        room[self.rank].copy_(part[0])
        if self._is_pairwise:
            into = {peer: room[peer] for peer in self.peers}
            doing = dict.fromkeys(self.peers, part[0])
            self._exchange(doing, into, lambda: room, place, tag=_FACTS_TAG).wait()
        elif self.size > 1:
            there, given = room.to(device), part.to(device)
            self.await_work(_all_gather(there, given, self.process_group), "comparison", place)
            room = there.cpu()
        found = [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in room]
        self._check_agreement(found, place)
        return found

    def check_device(self, device: Any, place: str) -> None:
        """Refuse tensors that the backend cannot carry."""
        if self.size > 1 and self.backend == "nccl" and device.type != "cuda":
            raise CommunicationError(
                f"{self._at(place)}: tensors are on '{device}', but the group's backend is nccl, "
                "which carries those of CUDA devices only; move the layer to the device, or start "
                "the group with backend gloo"
            )

    def await_work(self, work: Any, doing: str, place: str) -> None:
        """Wait for one operation, no longer than `timeout_s`."""
        try:
            if self.backend == "nccl":
                work.wait()  # orders streams; its own watchdog ends what hangs
            else:
                work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            raise CommunicationError(
                f"{self._at(place)}: {doing} failed or took more than {self.timeout_s:g} s: that "
                "rank has ended, hangs, or runs another layer or other shapes "
                f"({str(error).splitlines()[0]})"
            ) from error

    @property
    def _is_pairwise(self) -> bool:
        return self.backend != "nccl"

    def _at(self, place: str) -> str:
        return f"rank {self.rank} of {self.size}, layer '{place}'"

    def _exchange(
        self,
        out: Mapping[int, Tensor],
        into: Mapping[int, Tensor],
        finish: Callable[[], Tensor],
        place: str,
        tag: int = _DATA_TAG,
    ) -> Pending:
        """Start sends and receives between all pairs.

        All receives are posted before the first send: a note "ready to receive" that is posted
        later would wait behind data of the opposite direction on the same connection. Each rank
        begins with its neighbour, so that not all send to one rank at once.
        """
        order = [(self.rank + step) % self.size for step in range(1, self.size)]
        staged: list[tuple[Tensor, Tensor]] = []
        works: list[tuple[Any, str]] = []
        for peer in reversed(order):
            room = into[peer]
            if room.device.type != "cpu":  # gloo's sends and receives take none of a device
                staged.append((room, torch.empty_like(room, device="cpu")))
                room = staged[-1][1]
            received = dist.irecv(room, self._ranks[peer], self.process_group, tag)
            works.append((received, f"receiving from rank {peer}"))
        copies: dict[int, Tensor] = {}
        for peer in order:
            given = copies.setdefault(id(out[peer]), out[peer].cpu())
            sent = dist.isend(given, self._ranks[peer], self.process_group, tag)
            works.append((sent, f"sending to rank {peer}"))

        def finished() -> Tensor:
            for room, received in staged:
                room.copy_(received)
            return finish()

        return Pending(self, works, finished, place)

    def _check_agreement(self, found: Sequence[Mapping[str, Any]], place: str) -> None:
        keys = sorted({key for facts in found for key in facts if not key.startswith("own_")})
        wrong = []
        for key in keys:
            values: dict[str, list[int]] = {}
            for rank, facts in enumerate(found):
                values.setdefault(str(facts.get(key)), []).append(rank)
            if len(values) > 1:
                told = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in values.items())
                wrong.append(f"{key} is {told}")
        if wrong:
            raise CommunicationError(f"{self._at(place)}: ranks disagree: {'; '.join(wrong)}")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# The names of torch >= 2.13, and those of older ones that it warns of.
def _all_gather(out: Tensor, part: Tensor, group: Any) -> Any:
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return call(out, part, group=group, async_op=True)


def _reduce_scatter(out: Tensor, whole: Tensor, group: Any) -> Any:
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return call(out, whole, group=group, async_op=True)
