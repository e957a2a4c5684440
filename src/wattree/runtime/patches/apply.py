"""Changes torch so that a script which knows nothing of co-location shares its device."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from torch.optim import Optimizer

from wattree.runtime.colocation.environment import ColocatedProcess
from wattree.runtime.patches.backend import change_backend
from wattree.runtime.patches.loader import change_loader
from wattree.runtime.patches.model import change_model


def apply(colocation: ColocatedProcess, left: frozenset[str]) -> None:
    """Change torch.

    Args:
        left: Names of `PARTS` that the user does not want.
    """
    done = []
    if "backend" not in left:
        change_backend(colocation)
        done.append("gloo for NCCL")
    if "hook" not in left:
        change_model(colocation)
        done.append(f"{colocation.reduce} averages of gradients")
    if not {"batch", "workers"} <= left:
        change_loader(colocation, batch="batch" not in left, workers="workers" not in left)
        done.append(_loaders(colocation, left))
    if colocation.batch_rule == "fixed-per-process" and "learning-rate" not in left:
        change_learning_rate(colocation.processes)
        done.append(f"learning rates times {colocation.processes}")
    if os.environ.get("RANK", "0") == "0" and done:
        sys.stderr.write(
            f"wattree: {colocation.processes} processes per device: {', '.join(done)}\n"
        )


def _loaders(colocation: ColocatedProcess, left: frozenset[str]) -> str:
    batch = (
        f"1/{colocation.processes} of the batch"
        if colocation.batch_rule == "fixed-global"
        else "the whole batch"
    )
    workers = (
        f"1/{colocation.processes} of the workers"
        if colocation.loader_workers is None
        else f"{colocation.loader_workers} workers"
    )
    parts = ([] if "batch" in left else [batch]) + ([] if "workers" in left else [workers])
    return f"{' and '.join(parts)} in each DataLoader"


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
