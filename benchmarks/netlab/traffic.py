"""What gloo sends for one call: messages between ranks, and what each waits for.

Algorithms as in gloo's sources (`allreduce.cc`, `allgather.cc`, `broadcast.cc`), checked against
the byte counters of the recorded scenarios. Nothing here knows links or times.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.netlab.scenario import ScenarioTask

#: gloo moves an all-reduce in segments of at most this size (`AllreduceOptions`). [B]
MAX_SEGMENT_BYTES = 2**20
#: A ring keeps two segments on their way, so that adding one overlaps with receiving the next.
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a call.

    Attributes:
        size_bytes: Payload. [B]
        arrived: Messages of the call that must have arrived whole before it may start.
        sent: Messages of the call whose senders must be rid of them before it may start.
        follows_barrier: All ranks have met before it starts.
    """

    source: int
    target: int
    size_bytes: float
    arrived: tuple[int, ...] = ()
    sent: tuple[int, ...] = ()
    follows_barrier: bool = False


def messages_of(task: ScenarioTask) -> list[Message]:
    """Return the messages of one call, in the order in which each connection carries them.

    Ranks are positions in `task.hosts`.
    """
    ranks, size_bytes = len(task.hosts), task.size_bytes
    if task.kind == "send_recv":
        return [Message(source=0, target=1, size_bytes=size_bytes)]
    if task.kind == "broadcast":
        return _binomial_tree(ranks, task.root, size_bytes)
    if task.kind == "all_to_all":
        return _pairwise(ranks, size_bytes)
    if task.kind == "all_gather":  # two halves of every rank's part
        return _ring([], ranks, 1, [size_bytes / ranks / 2] * 2)
    # torch runs a reduce-scatter as an all-reduce of which every rank keeps a slice.
    segments = max(2, -(-size_bytes // (ranks * MAX_SEGMENT_BYTES)))
    sizes = [size_bytes / ranks / segments] * segments
    scattered = _ring([], ranks, -1, sizes)
    return _ring(scattered, ranks, -1, sizes)


def _ring(before: list[Message], ranks: int, direction: int, sizes: list[float]) -> list[Message]:
    """Return `before` and one round of a ring behind it: each part travels over ranks - 1 hops.

    In step `i` every rank sends one segment on and awaits one. It comes to step `i` when what it
    sent and awaited in step `i - 2` is done; a message needs its sender and its receiver there.
    """
    messages = list(before)
    for _ in range((ranks - 1) * len(sizes)):
        # A round begins with all of the round before it done: its first steps wait for its last.
        base = len(messages)
        step = base // ranks
        size_bytes = sizes[(step - len(before) // ranks) % len(sizes)]
        for source in range(ranks):
            target = (source + direction) % ranks
            upstream = (source - direction) % ranks
            # Step - 2 inside the round; in its first two steps, the last of the round before.
            behind = _steps_behind(step, len(before) // ranks)
            arrived = [k * ranks + rank for k in behind for rank in (upstream, source)]
            sent = [k * ranks + rank for k in behind for rank in (source, target)]
            messages.append(
                Message(
                    source=source,
                    target=target,
                    size_bytes=size_bytes,
                    arrived=tuple(arrived),
                    sent=tuple(sent),
                )
            )
    return messages


def _steps_behind(step: int, first: int) -> tuple[int, ...]:
    """Return the steps that must be over before `step` of a round that starts with `first`."""
    if step >= first + _IN_FLIGHT:
        return (step - _IN_FLIGHT,)
    return (first - 2, first - 1) if first else ()


def _binomial_tree(ranks: int, root: int, size_bytes: float) -> list[Message]:
    """Return whole messages down a binomial tree; a rank starts all its sends at once."""
    messages: list[Message] = []
    heard: dict[int, int] = {}  # rank, counted from the root → the message that it gets
    for bit in range((ranks - 1).bit_length()):
        for sender in range(min(1 << bit, ranks - (1 << bit))):
            receiver = sender + (1 << bit)
            arrived = (heard[sender],) if sender else ()
            heard[receiver] = len(messages)
            source, target = ((root + rank) % ranks for rank in (sender, receiver))
            messages.append(
                Message(source=source, target=target, size_bytes=size_bytes, arrived=arrived)
            )
    return messages


def _pairwise(ranks: int, size_bytes: float) -> list[Message]:
    """Return one part to every other rank, all at once, after a barrier."""
    return [
        Message(source=a, target=b, size_bytes=size_bytes / ranks, follows_barrier=True)
        for a in range(ranks)
        for b in range(ranks)
        if a != b
    ]
