"""A process group as layers use it: uneven parts, started early and awaited late, bytes counted.

On gloo everything but the all-reduce is pairwise sends and receives: gloo's own reduce-scatter
moves the bytes of an all-reduce, its all-gather takes no uneven parts, and of a pair it is known
which peer is missing. On NCCL the native collectives are used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.errors import CommunicationError, StrategyError
from wattree.runtime.shards import peers_of
from wattree.runtime.small import is_small, start_at_once
from wattree.runtime.transfers import (
    Gathering,
    NativeGathering,
    NativeScattering,
    Pending,
    Receipt,
    Scattering,
    SentTraffic,
    TransferWatch,
    TransferWork,
)

#: Time that a peer has, unless a group says otherwise; ten times less than gloo's own. [s]
_PATIENCE_S = 180.0
#: Backends with collectives of their own for all that is needed.
_NATIVE = frozenset({"nccl"})
#: Bytes of what a rank says of itself when ranks compare.
_FACTS_BYTES = 1024
_Blocks = Mapping[int, Tensor]  # by peer, what goes there or comes from there
#: Tags of messages on gloo, so that a comparison never meets the data of a layer, nor either the
#: messages of a program that sends its own, with tags from 0.
_DATA_TAG, _FACTS_TAG = 7740, 7741


class Group:
    """Ranks that share a layer.

    Args:
        process_group: Of torch.distributed; None is all ranks, or this process alone where
            torch.distributed has not been started.
        timeout_s: Time after which a peer counts as missing. [s]

    Attributes:
        rank: Of this process, in the group.
        size: Ranks of the group.
        backends: Kind of device → such as `gloo` and `nccl`; none for a process alone.
        peers: The other ranks, in the order in which blocks of them are stored.
        native: Backends whose own collectives are used; the others send between pairs.
        traffic: What was sent. Layers that share a group are counted together.
        watch: Called after every wait, unless None.
    """

    def __init__(self, process_group: Any = None, *, timeout_s: float = _PATIENCE_S) -> None:
        self.timeout_s, self.traffic = timeout_s, SentTraffic()
        self.watch: TransferWatch | None = None
        is_alone = process_group is None and not (dist.is_available() and dist.is_initialized())
        self.process_group = None if is_alone else process_group or dist.group.WORLD
        self.rank, self.size, self._ranks = 0, 1, [0]
        self.backends: dict[str, str] = {}
        if self.process_group is not None:
            self.rank = dist.get_rank(self.process_group)
            self.size = dist.get_world_size(self.process_group)
            parts = dist.get_backend_config(self.process_group).split(",")
            self.backends = dict(part.split(":", 1) for part in parts)
            self._ranks = dist.get_process_group_ranks(self.process_group)
        self.peers = peers_of(self.rank, self.size)
        self.native = _NATIVE

    @classmethod
    def of(cls, given: Any) -> Group:
        """Return the group of a `Group`, a `ProcessGroup`, a 1-D `DeviceMesh`, or None for all.

        Raises:
            StrategyError: A mesh has several dims.
        """
        if isinstance(given, Group):
            return given
        if hasattr(given, "get_group"):
            if given.ndim != 1:
                names = ", ".join(given.mesh_dim_names or ()) or "no names"
                raise StrategyError(
                    {"group": f"a mesh of {given.ndim} dims ({names}); name one: mesh['tp']"}
                )
            return cls(given.get_group())
        return cls(given)

    def __deepcopy__(self, _: Any) -> Group:
        """Return itself: a copied model communicates with the same peers."""
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
        self.traffic.add("all_gather", (self.size - 1) * part.nbytes)
        if self._is_pairwise(part):
            buffer = part.new_empty((len(self.peers) * rows, *part.shape[1:]))
            into = dict(zip(self.peers, buffer.split(rows), strict=True))
            return self._exchange_alike(
                dict.fromkeys(self.peers, part), into, lambda: buffer, place
            )
        buffer = part.new_empty((self.size * rows, *part.shape[1:]))
        work = self._native_gather(part, buffer, [rows] * self.size)

        def finish() -> Tensor:
            if self.rank < self.size - 1:
                own = buffer[self.rank * rows : (self.rank + 1) * rows]
                own.copy_(buffer[(self.size - 1) * rows :])
            return buffer[: (self.size - 1) * rows]

        return Pending(self, [work], finish, place)

    def buffer_for_peers(self, rows: int, columns: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the send buffer of `scatter_to_peers`, and the part of it to fill.

        The part is `((size - 1) rows, columns)`, blocks in the order of `peers`.
        """
        blocks = self.size - 1 if self._is_pairwise(like) else self.size
        buffer = like.new_empty((blocks * rows, columns))
        return buffer, buffer[: (self.size - 1) * rows]

    def scatter_to_peers(self, buffer: Tensor, rows: int, place: str) -> Pending:
        """Start a reduce-scatter in which no rank contributes to its own part.

        Args:
            buffer: From `buffer_for_peers`, filled.
            place: Of the layer, for messages.

        Returns:
            Result `(rows, columns)`: the sum of what the peers hold for this rank, in rank order.
        """
        block_bytes = rows * buffer[0].nbytes
        self.traffic.add("reduce_scatter", (self.size - 1) * block_bytes)
        if self._is_pairwise(buffer):
            # Received in ascending order, so that sums do not depend on who is asked.
            into_buffer = torch.empty_like(buffer)
            into = dict(zip(sorted(self.peers), into_buffer.split(rows), strict=True))
            out = dict(zip(self.peers, buffer.split(rows), strict=True))
            return self._exchange_alike(
                out, into, lambda: into_buffer.view(-1, rows, buffer.shape[1]).sum(0), place
            )
        own = buffer[self.rank * rows : (self.rank + 1) * rows]
        if self.rank < self.size - 1:
            buffer[(self.size - 1) * rows :].copy_(own)
        own.zero_()
        return self._native_scatter(buffer, [rows] * self.size, place)

    def all_gather(self, part: Tensor, sizes: Sequence[int], place: str) -> Pending:
        """Start an all-gather of parts that differ in their first dim.

        Args:
            part: `(sizes[rank], …)`, contiguous.
            sizes: First dim on every rank.
            place: Of the layer, for messages.

        Returns:
            Result `(sum(sizes), …)`, in rank order.
        """
        buffer = part.new_empty((sum(sizes), *part.shape[1:]))
        self.traffic.add("all_gather", (self.size - 1) * part.nbytes)
        if self.size > 1 and not self._is_pairwise(part):
            return Pending(self, [self._native_gather(part, buffer, sizes)], lambda: buffer, place)
        blocks = buffer.split(list(sizes))
        blocks[self.rank].copy_(part)
        into = {peer: blocks[peer] for peer in self.peers}
        return self._exchange(dict.fromkeys(self.peers, part), into, lambda: buffer, place)

    def gathering(
        self, part: Tensor, sizes: Sequence[int], place: str
    ) -> Gathering | NativeGathering:
        """Start an all-gather as `all_gather`, whose parts can be used as they arrive."""
        buffer = part.new_empty((sum(sizes), *part.shape[1:]))
        self.traffic.add("all_gather", (self.size - 1) * part.nbytes)
        if self._is_pairwise(part):
            return Gathering(self, part, buffer, sizes, place)
        return NativeGathering(self, buffer, self._native_gather(part, buffer, sizes), place)

    def scattering(
        self, like: Tensor, shape: Sequence[int], sizes: Sequence[int], place: str
    ) -> Scattering | NativeScattering:
        """Prepare a reduce-scatter over the first dim that sends blocks as they are computed.

        Args:
            like: Of the type and device of the result.
            shape: Of all blocks together, `(sum(sizes), …)`.
            sizes: Rows that every rank gets.
            place: Of the layer, for messages.
        """
        buffer = like.new_empty(tuple(shape))
        others = buffer.shape[0] - sizes[self.rank]
        self.traffic.add("reduce_scatter", others * buffer[:1].nbytes)
        if self._is_pairwise(buffer):
            return Scattering(self, buffer, sizes, place)
        return NativeScattering(
            self, buffer, sizes, lambda: self._native_scatter(buffer, sizes, place)
        )

    def all_reduce(self, tensor: Tensor, place: str) -> Pending:
        """Start a sum over ranks, in place; the result is `tensor`."""
        if self.size == 1:
            return Pending(self, [], lambda: tensor, place)
        self.traffic.add("all_reduce", round(2 * (self.size - 1) * tensor.nbytes / self.size))
        with self._explained("all-reduce", place):
            work = dist.all_reduce(tensor, group=self.process_group, async_op=True)
        pending = TransferWork(work, "all-reduce", self._holds(tensor))
        return Pending(self, [pending], lambda: tensor, place)

    def compare(self, facts: Mapping[str, Any], place: str, device: Any) -> list[dict[str, Any]]:
        """Return the description of every rank; not counted as traffic.

        Args:
            facts: What all ranks should agree on, `kind` among it, and what others want to know
                (names that begin with `own_`). Plain values.
            place: Of the layer.
            device: Of the tensors to come.

        Raises:
            CommunicationError: Ranks disagree, or do not answer.
        """
        message = json.dumps(facts, sort_keys=True).encode()
        assert len(message) <= _FACTS_BYTES, message
        part = torch.zeros(1, _FACTS_BYTES, dtype=torch.uint8)
        is_pairwise = self.backends.get(device.type) not in self.native
        part[0, : len(message)] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        buffer = torch.zeros(self.size, _FACTS_BYTES, dtype=torch.uint8)
        buffer[self.rank].copy_(part[0])
        if is_pairwise:
            into = {peer: buffer[peer] for peer in self.peers}
            doing = dict.fromkeys(self.peers, part[0])
            self._exchange(doing, into, lambda: buffer, place, tag=_FACTS_TAG).wait()
        elif self.size > 1:
            there, given = buffer.to(device), part.to(device)
            self.await_work(self._native_gather(given, there, [1] * self.size), place)
            buffer = there.cpu()
        found = [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in buffer]
        self._check_agreement(found, place)
        return found

    def check_device(self, device: Any, place: str) -> None:
        """Refuse tensors that the backend cannot carry."""
        if self.size > 1 and device.type not in self.backends:
            known = ", ".join(f"{name} for {kind}" for kind, name in self.backends.items())
            raise CommunicationError(
                f"{self._at(place)}: tensors are on '{device}', which the group has no backend for "
                f"(it has {known}); move the layer, or start the group with backend gloo"
            )

    def await_work(self, work: TransferWork, place: str) -> None:
        """Wait for one operation, no longer than `timeout_s`."""
        with self._explained(work.doing, place):
            if work.holds:
                work.handle.wait(timedelta(seconds=self.timeout_s))
            else:
                work.handle.wait()

    def receive(self, buffer: Tensor, peer: int, place: str, tag: int = _DATA_TAG) -> Receipt:
        """Post a receive; pairwise backends only."""
        into, doing = buffer, f"receiving from rank {peer}"
        if buffer.device.type != "cpu":  # gloo's sends and receives take none of a device
            into = torch.empty_like(buffer, device="cpu")
        with self._explained(doing, place):
            work = dist.irecv(into, self._ranks[peer], self.process_group, tag)
        stage = (lambda: None) if into is buffer else (lambda: buffer.copy_(into))
        return TransferWork(work, doing), stage

    def send(self, part: Tensor, peer: int, place: str, tag: int = _DATA_TAG) -> TransferWork:
        """Start sending a contiguous tensor; pairwise backends only."""
        doing = f"sending to rank {peer}"
        with self._explained(doing, place):
            return TransferWork(
                dist.isend(part.cpu(), self._ranks[peer], self.process_group, tag), doing
            )

    @contextmanager
    def _explained(self, doing: str, place: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            message = str(error).splitlines()[0]
            reason = f"failed: {message}"
            if "imed out" in message or "timeout" in message:
                reason = (
                    f"took more than {self.timeout_s:g} s: the other rank hangs, or runs another "
                    "layer or other shapes"
                )
            elif "onnection" in message:
                reason = "failed: the other rank has ended; see its own message"
            raise CommunicationError(f"{self._at(place)}: {doing} {reason}") from error

    def _is_pairwise(self, tensor: Tensor) -> bool:
        return self.backends.get(tensor.device.type) not in self.native

    def _holds(self, tensor: Tensor) -> bool:
        return self.backends.get(tensor.device.type) != "nccl"

    def _at(self, place: str) -> str:
        return f"rank {self.rank} of {self.size}, layer '{place}'"

    def _exchange_alike(
        self, out: _Blocks, into: _Blocks, finish: Callable[[], Tensor], place: str
    ) -> Pending:
        """Exchange messages that are of one size between all pairs."""
        if not is_small(out):
            return self._exchange(out, into, finish, place)
        doing = f"exchanging with {_ranks(sorted(out))}"
        with self._explained(doing, place):
            handle, settled = start_at_once(self.process_group, self.size, out, into, finish)
        return Pending(self, [TransferWork(handle, doing)], settled, place)

    def _exchange(
        self,
        out: _Blocks,
        into: _Blocks,
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
        receipts = [self.receive(into[peer], peer, place, tag) for peer in reversed(order)]
        works = [work for work, _ in receipts]
        works += [self.send(out[peer], peer, place, tag) for peer in order]

        def finished() -> Tensor:
            for _, stage in receipts:
                stage()
            return finish()

        return Pending(self, works, finished, place)

    def _native_gather(self, part: Tensor, buffer: Tensor, sizes: Sequence[int]) -> TransferWork:
        if len(set(sizes)) == 1:
            gather = one_tensor("all_gather")
            work = gather(buffer, part, group=self.process_group, async_op=True)
        else:
            blocks = list(buffer.split(list(sizes)))
            work = dist.all_gather(blocks, part, group=self.process_group, async_op=True)
        return TransferWork(work, "all-gather", self._holds(part))

    def _native_scatter(self, whole: Tensor, sizes: Sequence[int], place: str) -> Pending:
        blocks = list(whole.split(list(sizes)))
        result = torch.empty_like(blocks[self.rank])
        if len(set(sizes)) == 1:
            scatter = one_tensor("reduce_scatter")
            work = scatter(result, whole, group=self.process_group, async_op=True)
        else:
            work = dist.reduce_scatter(result, blocks, group=self.process_group, async_op=True)
        started = [TransferWork(work, "reduce-scatter", self._holds(whole))]
        return Pending(self, started, lambda: result, place)

    def _check_agreement(self, found: Sequence[Mapping[str, Any]], place: str) -> None:
        keys = {key for facts in found for key in facts if not key.startswith("own_")}
        if len({facts["kind"] for facts in found}) > 1:
            keys = {"kind", "name"}  # all the rest differs with them
        wrong = []
        for key in sorted(keys):
            values: dict[str, list[int]] = {}
            for rank, facts in enumerate(found):
                values.setdefault(str(facts.get(key)), []).append(rank)
            if len(values) > 1:
                differing = ", ".join(
                    f"{value} on {_ranks(ranks)}" for value, ranks in values.items()
                )
                wrong.append(f"{key} is {differing}")
        if wrong:
            raise CommunicationError(f"{self._at(place)}: ranks disagree: {'; '.join(wrong)}")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def one_tensor(kind: str) -> Any:
    """Return a collective of one tensor: by its name of torch 2.13, or that of older ones."""
    old = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[kind]
    return getattr(dist, f"{kind}_single", None) or getattr(dist, old)
