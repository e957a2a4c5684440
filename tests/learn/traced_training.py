"""One rank of a small training that profiles itself, sound first and then with each fault.

    python traced_training.py RANK WORLD FILE KIND FOLDER FAULT...

KIND is `ddp`, `fsdp` or `pipeline`. Ranks meet at FILE. Writes FOLDER/FAULT-RANK.json; `sound` is
the run that the length of the others' faults is taken from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, BATCH, STEPS = 32, 24, 16, 3
#: How many sound steps a fault takes: more than a busy machine makes of a sound one.
TIMES = 5.0
#: Bucket of a single parameter. [MiB]
TINY_MIB = 1e-5


class Samples(Dataset[torch.Tensor]):
    """Random samples, the first of each batch late by `stall_s`."""

    stall_s = 0.0

    def __len__(self) -> int:
        return 1000 * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % BATCH == 0:
            time.sleep(self.stall_s)
        return torch.ones(WIDTH) * (index % 7)


class Layer(nn.Module):
    """A linear layer; `fault` runs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.fault: Callable[[torch.Tensor], torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        return torch.relu(self.linear(x if self.fault is None else self.fault(x)))


def copying(lost_s: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a layer that copies for so long."""

    def copied(x: torch.Tensor) -> torch.Tensor:
        end, large = time.monotonic() + lost_s, torch.zeros(1 << 20)
        while time.monotonic() < end:
            large = large.clone()
        return x + large[0]

    return copied


def sleeping(lost_s: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a layer that does nothing for so long."""

    def slept(x: torch.Tensor) -> torch.Tensor:
        time.sleep(lost_s)
        return x

    return slept


def batches(samples: Samples) -> Iterator[torch.Tensor]:
    """Yield batches without end."""
    while True:
        yield from DataLoader(samples, batch_size=BATCH)


def trained(kind: str, rank: int, fault: str, lost_s: float, path: Path) -> float:
    """Train a few steps, write their trace, and return what a step took. [s]"""
    torch.manual_seed(0)
    layers = [Layer() for _ in range(LAYERS)]
    first, samples = layers[0] if kind != "pipeline" or rank == 0 else layers[-1], Samples()
    if fault == "slow_rank" and rank == 1:
        first.fault = sleeping(lost_s)
    if fault == "copies":
        first.fault = copying(lost_s)
    if fault == "data":
        samples.stall_s = lost_s
    step, model = stepper(
        kind, rank, layers, bucket_mib=TINY_MIB if fault == "small_buckets" else 25
    )
    optimizer, source = torch.optim.SGD(model.parameters(), lr=1e-3), batches(samples)
    plan = schedule(wait=1, warmup=2, active=STEPS)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
        for _ in range(3 + STEPS):
            dist.barrier()
            began = time.monotonic()
            x = next(source)
            optimizer.zero_grad()
            step(x)
            optimizer.step()
            took_s = time.monotonic() - began
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return took_s


def stepper(
    kind: str, rank: int, layers: list[Layer], *, bucket_mib: float
) -> tuple[Callable[[torch.Tensor], object], nn.Module]:
    """Return what runs forward and backward, and what the optimizer updates."""
    if kind == "pipeline":
        half = len(layers) // 2
        own = nn.Sequential(*(layers[:half] if rank == 0 else layers[half:]))
        stage = PipelineStage(own, rank, 2, torch.device("cpu"))
        pipeline = ScheduleGPipe(stage, 2, loss_fn=lambda y, _: y.square().mean())
        given = {"target": torch.zeros(BATCH, WIDTH)} if rank else {}
        return lambda x: pipeline.step(*([] if rank else [x]), **given), own
    model: nn.Module = nn.Sequential(*layers)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mib)
    else:
        fully_shard(model)
    return lambda x: model(x).square().mean().backward(), model


def main() -> None:
    """Train as one rank."""
    rank, world, kind, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4], Path(sys.argv[5])
    torch.set_num_threads(1)
    store = dist.FileStore(sys.argv[3], world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    sound = torch.tensor(trained(kind, rank, "sound", 0.0, folder / f"sound-{rank}.json"))
    dist.all_reduce(sound, op=dist.ReduceOp.MAX)
    lost_s = max(TIMES * float(sound), 0.1)
    for fault in sys.argv[6:]:
        trained(kind, rank, fault, lost_s, folder / f"{fault}-{rank}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
