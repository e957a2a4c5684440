"""Learning rates that grow with the batch."""

from __future__ import annotations

import functools
from typing import Any

from torch.optim import Optimizer


def change_learning_rate(scale: int) -> None:
    """Multiply the learning rates given to optimizers.

    Schedules that multiply it follow; those that set it (`OneCycleLR`, `CyclicLR`) do not.
    """
    original = Optimizer.__init__

    @functools.wraps(original)
    def begin(self: Any, params: Any, defaults: dict[str, Any]) -> None:
        groups = list(params)
        if groups and isinstance(groups[0], dict):
            groups = [_scaled(group, scale) for group in groups]
        original(self, groups, _scaled(defaults, scale))

    Optimizer.__init__ = begin


def _scaled(group: dict[str, Any], scale: int) -> dict[str, Any]:
    return group | {"lr": group["lr"] * scale} if group.get("lr") is not None else group
