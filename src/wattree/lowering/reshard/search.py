"""The cheapest way through a graph of states that is made as it is walked (A*)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import TypeVar

State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")
#: What is compared first stands first.
Price = tuple[float, ...]


def cheapest(
    start: State,
    goal: State,
    edges: Callable[[State], Iterable[tuple[Price, Step, State]]],
    *,
    bound: Callable[[State], Price],
) -> tuple[Step, ...]:
    """Return the steps of the cheapest way from `start` to `goal`.

    Args:
        edges: State → price, step and next state. Prices are added, item by item.
        bound: State → what the rest of the way costs at least.
    """
    nothing = tuple(0.0 for _ in bound(start))
    numbers = count()  # steps are not compared: the way that was found first wins
    waiting = [(bound(start), next(numbers), nothing, start, ())]
    done: set[State] = set()
    while waiting:
        _, _, paid, state, steps = heapq.heappop(waiting)
        if state == goal:
            return steps
        if state in done:
            continue
        done.add(state)
        for price, step, after in edges(state):
            if after not in done:
                sum_ = _plus(paid, price)
                entry = _plus(sum_, bound(after)), next(numbers), sum_, after, (*steps, step)
                heapq.heappush(waiting, entry)  # type: ignore[misc]
    raise AssertionError("every placement can be gathered and sent, so there is a way")


def _plus(left: Price, right: Price) -> Price:
    return tuple(one + other for one, other in zip(left, right, strict=True))
