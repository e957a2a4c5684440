"""What ranks do for `colocation_gain`: backward passes that do little but average gradients."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.reduce import attach

__all__ = ["averaged"]

_WARM_UP = 10


class _Sum(nn.Module):
    """A model that computes next to nothing and has gradients of a size."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numbers))

    def forward(self, scale: Any) -> Any:
        """Return the scaled sum of the weights."""
        return (self.weight * scale).sum()


def averaged(gradient_bytes: int, turns: int) -> dict[str, list[float]]:
    """Return times of backward passes with and without an average, turn by turn. [s]

    Args:
        gradient_bytes: Of float32 gradients. [B]
        turns: That are timed.
    """
    torch.set_num_threads(1)
    model = DistributedDataParallel(_Sum(gradient_bytes // 4))
    attach(model, processes_per_device=dist.get_world_size())
    found: dict[str, list[float]] = {"with": [], "without": []}
    scale = torch.ones(())
    for turn in range(_WARM_UP + turns):
        times = {}
        for name in found:
            model.zero_grad(set_to_none=True)
            dist.barrier()
            began_s = time.perf_counter()
            if name == "with":
                model(scale).backward()
            else:
                with model.no_sync():
                    model(scale).backward()
            times[name] = time.perf_counter() - began_s
        if turn >= _WARM_UP:
            for name, taken_s in times.items():
                found[name].append(taken_s)
    return found
