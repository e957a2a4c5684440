"""A DDP script that trains one of the zoo's networks, or a perceptron, on whatever it finds.

    wattree launch -q 2 -- python benchmarks/gpu_colocation_job.py --model resnet-18 --size 32

Images are bytes in host memory that loader workers turn into fp32; bf16 by autocast. With
`--profile PATH` it trains as one process and says where its step goes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from wattree.capture.catalog_entries import built_in_models

#: Name → name in the catalog; the perceptron is none of it.
MODELS = {"resnet-18": "resnet-18", "shufflenet": "shufflenet-v2-1.0", "mlp": ""}
_STORED = 256
_WARM_UP = 10


class Images(Dataset[Any]):
    """Images of bytes, as many as an epoch should have, a few of them different."""

    def __init__(self, size: int, samples: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (_STORED, 3, size, size)
        self._bytes = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        self._samples = samples

    def __len__(self) -> int:
        """Return how many there are."""
        return self._samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return one as numbers around 0, and its class."""
        return self._bytes[index % _STORED].float().div_(127.5).sub_(1.0), index % 10


def model_of(name: str, size: int) -> nn.Module:
    """Return a network for images of a size."""
    if name == "mlp":
        wide = 512
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * size * size, wide),
            nn.ReLU(),
            *(layer for _ in range(3) for layer in (nn.Linear(wide, wide), nn.ReLU())),
            nn.Linear(wide, 10),
        )
    entry = built_in_models()[MODELS[name]]
    module = import_module(f"wattree.capture.zoo.{entry.module}")
    network: nn.Module = module.build(**entry.options)
    return network


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until a trial ends it, or for a number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="resnet-18")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args(arguments)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(model_of(given.model, given.size).to(device).train())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = Images(given.size, 1 << 16)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(
        data,
        batch_size=given.batch,
        sampler=sampler,
        num_workers=given.workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    clock = _Clock(device)
    done = 0
    while done < given.steps:
        sampler.set_epoch(done)
        for inputs, targets in loader:
            clock.loaded()
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                outputs = model(inputs.to(device, non_blocking=True))
                loss = functional.cross_entropy(outputs, targets.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            done += 1
            if given.profile:
                clock.stepped(done)
            if done == given.steps:
                break
    if given.profile:
        given.profile.write_text(json.dumps(clock.summary(given.batch)), encoding="utf-8")
    dist.destroy_process_group()
    return 0


class _Clock:
    """Clocks steps, and asks the profiler what the device did in the second half of them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._loads: list[float] = []
        self._steps: list[float] = []
        self._at = time.perf_counter()
        self._profiler: Any = None
        self._profiled = 0

    def loaded(self) -> None:
        self._loads.append(time.perf_counter() - self._at)

    def stepped(self, done: int) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._profiler is None:
            self._steps.append(now - self._at)
        else:
            self._profiled += 1
        if done == 3 * _WARM_UP and self._device.type == "cuda":
            from torch.profiler import ProfilerActivity, profile

            self._profiler = profile(activities=[ProfilerActivity.CUDA])
            self._profiler.start()
        self._at = time.perf_counter()

    def summary(self, batch: int) -> dict[str, float]:
        step_s = statistics.median(self._steps[_WARM_UP:])
        waiting_s = statistics.median(self._loads[_WARM_UP : len(self._steps)])
        device_s, kernels = step_s - waiting_s, 1.0
        if self._profiler is not None:
            self._profiler.stop()
            events = self._profiler.key_averages()
            device_s = sum(event.self_device_time_total for event in events) / 1e6 / self._profiled
            kernels = sum(event.count for event in events) / self._profiled
        return {
            "samples": float(batch),
            "step_s": step_s,
            "waiting_s": waiting_s,
            "device_s": min(device_s, step_s - waiting_s),
            "kernels": kernels,
        }


if __name__ == "__main__":
    raise SystemExit(main())
