"""Reduces losses over all ranks, and exchanges their other shared state in the same message."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Ranks talk about losses so often at most, but after every step that takes longer. [s]
_TALK_EVERY_S = 0.2
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAgreement:
    """The shared state of all ranks.

    Attributes:
        losses: Of the steps since the last time, over the whole batch.
        stop: Whether any of them was asked to stop.
        power_w: Of all nodes; 0 where none is known. [W]
        is_estimate: Whether some of the power is estimated.
        step_s: Time of a step, the mean over ranks. [s]
    """

    losses: tuple[float, ...]
    stop: bool
    power_w: float
    is_estimate: bool
    step_s: float


class LossLog:
    """Collects this rank's parts of losses until the ranks exchange them.

    Args:
        control: All ranks, on the CPU.
        share: What this rank's loss counts in the sum over ranks.
        talked: Called with the marks around each talk.
    """

    def __init__(
        self,
        control: Any,
        *,
        share: float,
        mark: Callable[[], Any],
        talked: Callable[[Any, Any], None],
    ) -> None:
        self._control, self._share = control, share
        self._mark, self._talked = mark, talked
        self._parts: list[Tensor] = []
        self._begun_s = time.monotonic()
        self._every = 1
        self.losses: list[float] = []

    def add(self, part: Tensor) -> None:
        """Take this rank's loss of a step."""
        self._parts.append(part)

    @property
    def is_due(self) -> bool:
        """Return whether ranks exchange losses now; the same on all of them."""
        return len(self._parts) >= self._every

    def talk(self, *, stop: bool, power_w: float, is_estimate: bool) -> LossAgreement:
        """Return the shared state of all ranks; a collective call.

        Args:
            power_w: Power that this rank reads. [W]
            is_estimate: Whether some of it is estimated.
        """
        parts = [float(part) * self._share for part in self._parts]
        now_s = time.monotonic()
        values = [*parts, float(stop), power_w, float(is_estimate), now_s - self._begun_s]
        totals = torch.tensor(values, dtype=torch.float64)
        begin = self._mark()
        dist.all_reduce(totals, group=self._control)
        self._talked(begin, self._mark())
        *losses, stops, watts, estimates, seconds = totals.tolist()
        step_s = seconds / dist.get_world_size(self._control) / len(parts)
        # From the same sums on every rank, so that they talk after the same step again.
        self._every = min(max(int(_TALK_EVERY_S / step_s) if step_s > 0 else 1, 1), _MOST_STEPS)
        self._parts, self._begun_s = [], time.monotonic()
        self.losses += losses
        return LossAgreement(
            losses=tuple(losses),
            stop=stops > 0,
            power_w=watts,
            is_estimate=estimates > 0,
            step_s=step_s,
        )
