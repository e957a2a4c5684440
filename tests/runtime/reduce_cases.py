"""What ranks do in the tests of gradient reduction; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattree.runtime.reduce import attach


def small_model(seed: int = 0, *, dtype: Any = torch.float64) -> nn.Module:
    """Return a model of a few layers, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 17), nn.Tanh(), nn.Linear(17, 3)
    ).to(dtype)


def trained(q: int, method: str, steps: int = 4, **options: Any) -> list[float]:
    """Return the parameters after a few steps on shares of one batch."""
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.004)
    attach(model, method=method, processes_per_device=q, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(steps):
        x, y = batch(step)
        part = len(x) // ranks
        x, y = x[rank * part : (rank + 1) * part], y[rank * part : (rank + 1) * part]
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [float(value) for p in model.parameters() for value in p.flatten()]


def batch(step: int, samples: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(samples, 24, generator=generator, dtype=torch.float64),
        torch.randn(samples, 3, generator=generator, dtype=torch.float64),
    )
