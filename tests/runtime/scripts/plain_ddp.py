# ruff: noqa: ARG005, N817, PTH123 - as people write them
"""A DDP script that knows nothing of Wattree, as people write it; tests run it unmodified."""

import argparse
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    """Train a small model, and write its parameters and what it saw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--own-hook", action="store_true")
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--out", default="")
    told = parser.parse_args()
    dist.init_process_group(told.backend)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(48, 12, generator=generator, dtype=torch.float64)
    samples = TensorDataset(inputs, inputs[:, :3].sin())
    sampler = DistributedSampler(samples, seed=3)
    loader = DataLoader(samples, told.batch, sampler=sampler, num_workers=told.workers)
    layers = [nn.Linear(12, 20), nn.BatchNorm1d(20) if told.norm else nn.Tanh(), nn.Linear(20, 3)]
    model = DDP(nn.Sequential(*layers).double())
    if told.bf16:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.bf16_compress_hook
        model.register_comm_hook(None, hook)
    if told.own_hook:
        model.register_comm_hook(None, lambda state, bucket: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rows = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            rows.append(len(x))
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    said = {
        "rank": dist.get_rank(),
        "rows": rows,
        "workers": loader.num_workers,
        "backend": dist.get_backend(),
        "lr": optimizer.param_groups[0]["lr"],
        "parameters": [float(v) for p in model.parameters() for v in p.detach().flatten()],
    }
    if told.out:
        with open(f"{told.out}.{dist.get_rank()}", "w") as file:
            json.dump(said, file)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {os.environ['RANK']} ends\n")


if __name__ == "__main__":
    main()
