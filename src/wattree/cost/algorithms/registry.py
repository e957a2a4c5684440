"""Registry of algorithms by name, and their common interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import EVERY, MessageSchedule, Round
from wattree.errors import CostError
from wattree.registry import Registry

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send_receive",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of an algorithm.

    Attributes:
        kind: One of `KINDS`.
        size_bytes: The buffer, as nccl-tests counts it: of each rank for all_reduce, broadcast and
            reduce; the gathered result for all_gather and gather; the input of a rank for
            reduce_scatter and all_to_all; the whole at the root for scatter; the message. [B]
        group: Who takes part.
        root: Rank that has or gets the whole (broadcast, reduce, gather, scatter), or that sends.
        peer: Rank that receives in send_receive.
        matrix_bytes: all_to_all of uneven parts: what rank i sends to rank j, instead of
            `size_bytes`. Shape `(n, n)`. [B]
        channels: Rings or trees that share the data; None for as many as the topology feeds.
        switch: Vertex of the fabric that adds, for `sharp`.
    """

    kind: str
    size_bytes: float
    group: RankGroup
    root: int = 0
    peer: int = 1
    matrix_bytes: Floats | None = None
    channels: int | None = None
    switch: str | None = None

    def __post_init__(self) -> None:
        n = self.group.ranks
        if self.kind not in KINDS:
            raise CostError(f"unknown collective '{self.kind}'; known: {', '.join(KINDS)}")
        if not 0 <= self.size_bytes < float("inf"):
            raise CostError(f"{self.kind}: size {self.size_bytes} B, expected 0 or more")
        if not 0 <= self.root < n:
            raise CostError(f"{self.kind}: root {self.root}, expected a rank from 0 to {n - 1}")
        if self.kind == "send_receive" and n > 1 and not 0 <= self.peer < n:
            raise CostError(f"send_receive: peer {self.peer}, expected a rank from 0 to {n - 1}")
        if self.channels is not None and self.channels < 1:
            raise CostError(f"{self.kind}: {self.channels} channels, expected 1 or more")
        matrix = self.matrix_bytes
        if matrix is not None and (
            matrix.shape != (n, n) or not np.all(np.isfinite(matrix)) or np.any(matrix < 0)
        ):
            raise CostError(
                f"{self.kind}: matrix of bytes of shape {matrix.shape}, expected ({n}, {n}) of "
                "finite sizes of 0 or more"
            )

    def schedule(
        self, algorithm: str, owner: Integers, rounds: Sequence[Round], **more: Any
    ) -> MessageSchedule:
        """Return the messages of chunks that each belong to one rank.

        Args:
            algorithm: Its name.
            owner: Rank whose part each chunk is. Shape `(c,)`.
            rounds: In order.
            more: Further fields of `MessageSchedule`; chunks are equal unless they say otherwise.
        """
        every, at_root = np.full_like(owner, EVERY), np.full_like(owner, self.root)
        source, target = {
            "all_reduce": (every, every),
            "all_gather": (owner, every),
            "reduce_scatter": (every, owner),
            "broadcast": (at_root, every),
            "reduce": (every, at_root),
            "gather": (owner, at_root),
            "scatter": (at_root, owner),
        }[self.kind]
        sizes = np.full(len(owner), self.size_bytes / len(owner))
        return self._messages(algorithm, source, target, rounds, **{"chunk_bytes": sizes} | more)

    def exchange(
        self,
        algorithm: str,
        source: Integers,
        target: Integers,
        rounds: Sequence[Round],
        **more: Any,
    ) -> MessageSchedule:
        """Return the messages of an all-to-all, whose chunks each go from one rank to another."""
        sizes = np.full(len(source), self.size_bytes / self.group.ranks)
        if self.matrix_bytes is not None:
            sizes = self.matrix_bytes[source, target].astype(np.float64)
        return self._messages(algorithm, source, target, rounds, **{"chunk_bytes": sizes} | more)

    def _messages(
        self,
        algorithm: str,
        source: Integers,
        target: Integers,
        rounds: Sequence[Round],
        **more: Any,
    ) -> MessageSchedule:
        return MessageSchedule(
            kind=self.kind,
            algorithm=algorithm,
            group=self.group,
            source=source,
            target=target,
            rounds=tuple(rounds),
            **more,
        )


class Algorithm(Protocol):
    """Generates the messages of a call."""

    def __call__(self, call: Call) -> MessageSchedule:
        """Return the messages; every chunk reaches its target if rounds are executed in order.

        The group has two ranks or more.

        Raises:
            CostError: The algorithm has no such collective, or does not fit the group.
        """


ALGORITHMS: Registry[Algorithm] = Registry(
    kind="collective algorithm", group="wattree.collective_algorithms"
)
#: Algorithm of this package → collectives that it has.
KINDS_OF: dict[str, tuple[str, ...]] = {}
REDUCTIONS = ("all_reduce", "all_gather", "reduce_scatter")


def algorithm(name: str, *kinds: str) -> Callable[[Algorithm], Algorithm]:
    """Return a decorator that registers an algorithm, and has it refuse all but some collectives.

    Args:
        name: In `ALGORITHMS`.
        kinds: Those that it has.
    """
    KINDS_OF[name] = kinds

    def add(generate: Algorithm) -> Algorithm:
        @wraps(generate)
        def checked(call: Call) -> MessageSchedule:
            if call.kind not in kinds:
                has = f"algorithm '{name}' has no {call.kind}; it has {', '.join(kinds)}"
                raise CostError(has)
            return generate(call)

        return ALGORITHMS.register(name)(checked)

    return add
