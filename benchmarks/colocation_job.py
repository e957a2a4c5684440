"""A DDP script as users write them, whose samples wait, whose model computes, or both.

    wattree launch -q 2 -- python benchmarks/colocation_job.py --latency 1e-3 --model perceptron

With `--profile PATH --shares q` it trains as one process and says where its step goes, and what of
it remains for 1/q of the batch on 1/q of the cores: all that a prediction for `q` needs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

#: Batches that are loaded to time a worker.
_LOADED = 20


class Samples(Dataset[Any]):
    """Random samples that come after a time, as from a slow disk, and take time to decode.

    Args:
        latency_s: Time in which nothing works for it. [s]
        decodings: Times that it is sorted, which takes a core.
    """

    def __init__(self, shape: tuple[int, ...], latency_s: float, decodings: int) -> None:
        self._shape, self._latency_s, self._decodings = shape, latency_s, decodings

    def __len__(self) -> int:
        """Return how many there are."""
        return 8192

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return one, and its class."""
        if self._latency_s:
            time.sleep(self._latency_s)
        sample = torch.randn(self._shape, generator=torch.Generator().manual_seed(index))
        for _ in range(self._decodings):
            sample = sample.flatten().sort().values.view(self._shape)
        return sample, index % 10


def model_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """Return a small model, and the shape of its samples."""
    if name == "perceptron":
        layers = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
        return nn.Sequential(*layers), (256,)
    layers = [
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    ]
    return nn.Sequential(*layers), (3, 32, 32)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until a trial ends it, or for a number of steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=("perceptron", "convolutions"), default="perceptron")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--latency", type=float, default=0.0, help="of a sample, in s")
    parser.add_argument("--decodings", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--shares", type=int, default=2)
    given = parser.parse_args(arguments)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain, shape = model_of(given.model)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = Samples(shape, given.latency, given.decodings)
    sampler: DistributedSampler[Any] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=given.batch, sampler=sampler, num_workers=given.workers)
    clock = _Clock(given.shares, model, optimizer) if given.profile else None
    if clock is not None and given.workers:
        clock.load(data, given.batch, given.workers)
    done = 0
    while done < given.steps:
        sampler.set_epoch(done)
        batches = iter(loader)
        while done < given.steps:
            if clock is not None:
                clock.begin()
            batch = next(batches, None)
            if batch is None:
                break
            if clock is not None:
                clock.loaded()
            _step(model, optimizer, *batch)
            if clock is not None:
                clock.computed(*batch)
            done += 1
    if clock is not None:
        given.profile.write_text(json.dumps(clock.summary(given.batch)), encoding="utf-8")
    dist.destroy_process_group()
    return 0


def _step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


class _Clock:
    """Times the parts of steps; after each, that of a share of it on a share of the cores."""

    def __init__(self, shares: int, model: nn.Module, optimizer: Any) -> None:
        self._shares, self._model, self._optimizer = shares, model, optimizer
        self._threads = torch.get_num_threads()
        self._few = max(1, len(os.sched_getaffinity(0)) // shares)
        self._times: dict[str, list[float]] = {}
        self._at = self._cpu = 0.0
        self._workers = 0

    def load(self, data: Dataset[Any], batch: int, workers: int) -> None:
        """Time what a worker does for a batch, in this process."""
        self._workers = workers
        for _ in range(_LOADED):
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            default_collate([data[index] for index in range(batch)])
            self._note("loader_s", time.perf_counter() - began_s)
            self._note("loader_core_s", time.thread_time() - began_cpu_s)

    def begin(self) -> None:
        self._at, self._cpu = time.perf_counter(), time.thread_time()

    def loaded(self) -> None:
        now = time.perf_counter()
        busy_s = time.thread_time() - self._cpu
        # What it waits for workers is their time, not its own.
        waited_s = 0.0 if self._workers else max(now - self._at - busy_s, 0.0)
        self._note("waiting_s", waited_s)
        self._note("host_s", busy_s)
        self._loading_s, self._at = now - self._at, now

    def computed(self, inputs: Any, targets: Any) -> None:
        self._note("step_s", self._loading_s + time.perf_counter() - self._at)
        torch.set_num_threads(self._few)
        for name, rows in (("whole_s", len(inputs)), ("share_s", len(inputs) // self._shares)):
            began_s = time.perf_counter()
            _step(self._model, self._optimizer, inputs[:rows], targets[:rows])
            self._note(name, time.perf_counter() - began_s)
        torch.set_num_threads(self._threads)

    def summary(self, batch: int) -> dict[str, float]:
        gradient_bytes = sum(p.numel() * p.element_size() for p in self._model.parameters())
        medians = {name: statistics.median(times[5:]) for name, times in self._times.items()}
        return medians | {
            "samples": float(batch),
            # Not from CPU time, which counts idle threads that spin, too.
            "cores": float(self._few),
            "workers": float(self._workers),
            "gradient_bytes": float(gradient_bytes),
        }

    def _note(self, name: str, value: float) -> None:
        self._times.setdefault(name, []).append(value)


if __name__ == "__main__":
    raise SystemExit(main())
