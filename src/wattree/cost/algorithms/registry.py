"""Registry of algorithms by name, and their common interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

import numpy as np

from wattree.arrays import Integers
from wattree.cost.algorithms.group import RankGroup
from wattree.cost.algorithms.messages import EVERY, MessageSchedule, Round
from wattree.errors import CostError
from wattree.registry import Registry

#: What layout changes and replicas call for.
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Arguments of an algorithm.

    Attributes:
        kind: One of `KINDS`.
        size_bytes: The buffer, as nccl-tests counts it: of each rank for all_reduce; the gathered
            result for all_gather; the input of a rank for reduce_scatter and all_to_all. [B]
        group: Who takes part.
        switch: Vertex of the fabric that adds, for `sharp`.
    """

    kind: str
    size_bytes: float
    group: RankGroup
    switch: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise CostError(f"unknown collective '{self.kind}'; known: {', '.join(KINDS)}")
        if not 0 <= self.size_bytes < float("inf"):
            raise CostError(f"{self.kind}: size {self.size_bytes} B, expected 0 or more")

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
        every = np.full_like(owner, EVERY)
        source, target = {
            "all_reduce": (every, every),
            "all_gather": (owner, every),
            "reduce_scatter": (every, owner),
        }[self.kind]
        sizes = np.full(len(owner), self.size_bytes / len(owner))
        return self._messages(algorithm, source, target, rounds, **{"chunk_bytes": sizes} | more)

    def exchange(
        self,
        algorithm: str,
        source: Integers,
        target: Integers,
        rounds: Sequence[Round],
        *,
        pipelined: bool = False,
    ) -> MessageSchedule:
        """Return the messages of an all-to-all, whose chunks each go from one rank to another."""
        sizes = np.full(len(source), self.size_bytes / self.group.ranks)
        return self._messages(
            algorithm, source, target, rounds, chunk_bytes=sizes, pipelined=pipelined
        )

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
