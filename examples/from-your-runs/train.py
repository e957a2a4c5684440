"""A plain PyTorch training that writes a trace of each rank.

torchrun --nproc-per-node 2 train.py FOLDER [--stall SECONDS]
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--stall", type=float, default=0.0, help="make the input late by so much")
options = parser.parse_args()

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.set_num_threads(1)


def collate(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    """Return a batch, late if that was asked for."""
    time.sleep(options.stall)
    return torch.stack([sample for (sample,) in samples])


loader = DataLoader(TensorDataset(torch.randn(64 * 8, 256)), batch_size=64, collate_fn=collate)
layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(7)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 256)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

# Two steps to warm up, then three that are recorded. step() marks where each ends.
plan = schedule(wait=1, warmup=1, active=3)
with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        profiler.step()
        if step == 4:
            break

options.folder.mkdir(exist_ok=True)
profiler.export_chrome_trace(str(options.folder / f"rank{rank}.json.gz"))
torch.distributed.destroy_process_group()
