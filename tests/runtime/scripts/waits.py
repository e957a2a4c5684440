"""A DDP script whose samples take 5 ms each; its second argument leaves DDP out."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Slow(Dataset[Any]):
    """Samples that take time."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 512

    def __getitem__(self, index: int) -> Any:
        """Return one."""
        time.sleep(5e-3)
        return torch.randn(4)


def main() -> None:
    """Train, then leave a file."""
    place, *plain = sys.argv[1:]
    dist.init_process_group("gloo")
    model: Any = nn.Linear(4, 4)
    if not plain:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = Slow()
    try:
        for _ in range(50):
            for batch in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        Path(place).touch()
    finally:
        if not plain:
            Path(f"{place}.finally").touch()


main()
