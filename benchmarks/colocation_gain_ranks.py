"""What ranks do for `colocation_gain`: backward passes that do little but average gradients."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.reduce import attach

#: Backward passes in a row.
_PASSES = 20


class _Sum(nn.Module):
    """A model that computes next to nothing and has gradients of a size."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numbers))

    def forward(self, scale: Any) -> Any:
        """Return the scaled sum of the weights."""
        return (self.weight * scale).sum()


def averaged(gradient_bytes: int, turns: int) -> dict[str, list[float]]:
    """Return times of backward passes that average among all and alone, turn by turn. [s]

    Alone a process averages with no one, as DDP does in the run that a prediction is made of: that
    run knows what hooks and buckets take, and only what comes to it with others is asked here.

    Args:
        gradient_bytes: Of float32 gradients. [B]
    """
    torch.set_num_threads(1)
    size, rank = dist.get_world_size(), dist.get_rank()
    groups = [dist.new_group([each]) for each in range(size)]
    sums = [_Sum(gradient_bytes // 4) for _ in ("together", "alone")]
    models = {
        "together": DistributedDataParallel(sums[0]),
        "alone": DistributedDataParallel(sums[1], process_group=groups[rank]),
    }
    attach(models["together"], processes_per_device=size)
    found: dict[str, list[float]] = {name: [] for name in models}
    scale = torch.ones(())
    for turn in range(1 + turns):  # the first warms up
        for name, model in models.items():
            dist.barrier()
            began_s = time.perf_counter()
            # In a row: what ranks are apart after a barrier is no part of an average.
            for _ in range(_PASSES):
                model.zero_grad(set_to_none=True)
                model(scale).backward()
            if turn:
                found[name].append((time.perf_counter() - began_s) / _PASSES)
    return found
