"""A DDP script whose samples come from a slow disk and are decoded: what the study measures.

It knows nothing of several processes on a device.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class SlowFiles(Dataset[Any]):
    """Vectors that take `latency` seconds to come and `decodings` sorts to decode."""

    def __init__(self, latency: float, decodings: int) -> None:
        self.latency, self.decodings = latency, decodings

    def __len__(self) -> int:
        """Return how many there are."""
        return 16384

    def __getitem__(self, index: int) -> Any:
        """Return one, and its class."""
        time.sleep(self.latency)
        sample = torch.randn(256, generator=torch.Generator().manual_seed(index))
        for _ in range(self.decodings):
            sample = sample.sort().values
        return sample, index % 10


def main() -> None:
    """Train three epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--latency", type=float, default=1e-3)
    parser.add_argument("--decodings", type=int, default=2)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = SlowFiles(given.latency, given.decodings)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, given.batch, sampler=sampler, num_workers=given.workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
