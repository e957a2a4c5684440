"""What ranks do in the tests of gradient reduction; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wattree.errors import WattreeError
from wattree.runtime.reduce import attach

SAMPLES = 24
STEPS = 4
Row = list[float]


def model_of() -> nn.Module:
    """Return a small model, the same on every rank."""
    torch.manual_seed(0)
    layers = [nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 17), nn.Tanh(), nn.Linear(17, 3)]
    return nn.Sequential(*layers).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a step, the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(SAMPLES, 24, generator=generator, dtype=torch.float64)
    return x, torch.randn(SAMPLES, 3, generator=generator, dtype=torch.float64)


def steps_of(model: nn.Module, shares: Callable[[int, int], slice], *, parts: int = 1) -> Row:
    """Return the parameters after a few steps, each on shares of a batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    device = next(model.parameters()).device
    for step in range(STEPS):
        x, y = (values.to(device) for values in batch(step))
        for part in range(parts):
            mine = shares(step, part)
            loss = nn.functional.mse_loss(model(x[mine]), y[mine]) / parts
            if part < parts - 1:
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return numbers(model)


def numbers(model: nn.Module) -> Row:
    """Return all parameters in a row."""
    return [float(value) for p in model.parameters() for value in p.detach().flatten()]


def wrapped(module: nn.Module | None = None, **options: Any) -> DistributedDataParallel:
    """Return a model with several buckets whose gradients are averaged as options say."""
    model = DistributedDataParallel(module or model_of(), bucket_cap_mb=0.004)
    attach(model, timeout_s=300.0, **options)
    return model


def evenly(step: int, part: int, parts: int = 1) -> slice:
    """Return this rank's part of a batch, or of a micro-batch."""
    del step
    rank, size = dist.get_rank(), SAMPLES // dist.get_world_size() // parts
    begin = (part * dist.get_world_size() + rank) * size
    return slice(begin, begin + size)


def unevenly(step: int, part: int) -> slice:
    """Return parts of 3, 9, 3 and 9 samples."""
    del step, part
    ends = [0, 3, 12, 15, 24]
    return slice(ends[dist.get_rank()], ends[dist.get_rank() + 1])


def paths() -> dict[str, Any]:
    """Return where training goes in every way, on 2 devices of 2 processes each."""
    two = {"processes_per_device": 2}
    alone = steps_of(model_of(), lambda _step, _part: slice(None))
    found: dict[str, Any] = {
        "alone": alone,
        "hierarchical": steps_of(wrapped(method="hierarchical", **two), evenly),
        "again": steps_of(wrapped(method="hierarchical", **two), evenly),
        "one device": steps_of(wrapped(method="hierarchical", processes_per_device=4), evenly),
        "flat": steps_of(wrapped(method="flat", **two), evenly),
        "flat again": steps_of(wrapped(method="flat", **two), evenly),
        "accumulated": steps_of(wrapped(**two), lambda step, part: evenly(step, part, 3), parts=3),
        "uneven, by rank": steps_of(wrapped(**two), unevenly),
        "bf16": steps_of(wrapped(compress="bf16", **two), evenly),
        "bf16, flat": steps_of(wrapped(compress="bf16", method="flat", **two), evenly),
    }
    return found


def on_accelerator() -> dict[str, Row]:
    """Return where two processes on one accelerator go, whose buffers CUDA IPC shares."""
    both = wrapped(model_of().to("cuda"), method="hierarchical", processes_per_device=2)
    return {
        "alone": steps_of(model_of().to("cuda"), lambda _step, _part: slice(None)),
        "both": steps_of(both, evenly),
    }


def gradients() -> dict[str, Any]:
    """Return averages of known gradients, of 2 devices of 2 processes each."""
    return {
        f"{method} {kind}": mean_of(method, kind)
        for method in ("hierarchical", "flat")
        for kind in ("float64", "float32", "bfloat16", "float16", "whole")
    }


def mean_of(method: str, kind: str) -> Row:
    """Return the mean over ranks of a gradient of 1021 elements, by one backward pass."""
    dtype = torch.float64 if kind == "whole" else getattr(torch, kind)
    generator = torch.Generator().manual_seed(dist.get_rank())
    mine = torch.randn(1021, generator=generator, dtype=torch.float64)
    if kind == "whole":
        mine = (mine * 2**20).round()
    model = _Times(dtype)
    ddp = DistributedDataParallel(model)
    attach(ddp, method=method, processes_per_device=2, timeout_s=300.0)
    ddp(mine.to(dtype)).sum().backward()
    return [float(value) for value in model.weight.grad]


class _Times(nn.Module):
    """Multiplies by a weight, whose gradient is what is multiplied."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1021, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


def joined() -> dict[str, Any]:
    """Return where training goes when ranks have 1, 2, 3 and 4 batches."""
    found = {}
    for method in ("hierarchical", "flat", None):
        model = DistributedDataParallel(model_of(), bucket_cap_mb=0.004)
        if method is not None:
            attach(model, method=method, processes_per_device=2, timeout_s=300.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(dist.get_rank() + 1):
                x, y = batch(step)
                mine = evenly(step, 0)
                optimizer.zero_grad()
                nn.functional.mse_loss(model(x[mine]), y[mine]).backward()
                optimizer.step()
        found[str(method)] = numbers(model)
    return found


def traffic() -> dict[str, Any]:
    """Return the bytes that this rank sent over a few steps, and the memory that it shares."""
    found: dict[str, Any] = {}
    for method, options in (
        ("hierarchical", {}),
        ("flat", {}),
        ("bf16", {"compress": "bf16", "method": "hierarchical"}),
    ):
        as_dict = {"method": method, "processes_per_device": 2} | options
        model = DistributedDataParallel(model_of(), bucket_cap_mb=0.004)
        reduction = attach(model, timeout_s=300.0, **as_dict)
        steps_of(model, evenly)
        found[method] = reduction.traffic.total_bytes
        found[f"{method} shares"] = shared_memory()
    found["parameters"] = sum(p.numel() * 8 for p in model.parameters())
    return found


def everything() -> dict[str, Any]:
    """Return all of the above, of one start of the ranks."""
    return {
        "paths": paths(),
        "gradients": gradients(),
        "joined": joined(),
        "traffic": traffic(),
        "misuse": misuse(),
        "shared at the end": shared_memory(),
    }


def shared_memory() -> list[str]:
    """Return the files of ours that this process has in its memory."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if "wattree-" in line})


def notes(call: Callable[[], Any]) -> str:
    """Return the message of the error that a call raises."""
    try:
        call()
    except (WattreeError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def misuse() -> dict[str, str]:
    """Return what is said of what cannot be."""
    ddp = DistributedDataParallel(model_of())
    rank = dist.get_rank()
    odd = "flat" if rank == 1 else "hierarchical"
    return {
        "method": notes(lambda: attach(ddp, method="ring")),
        "division": notes(lambda: attach(ddp, processes_per_device=3)),
        "disagreement": notes(lambda: attach(ddp, method=odd, processes_per_device=2)),
        "mpi": notes(lambda: attach(ddp, method="mpi", processes_per_device=2)),
    }


def faulty(how: str, victim: int, folder: str, method: str, seed: int = 0) -> None:
    """Write what a rank says, and how long after its last step began, if another ends or hangs."""
    model = DistributedDataParallel(model_of(), bucket_cap_mb=0.004)
    patience_s = 3.0 if how == "hangs" else 300.0  # the end of a rank is noticed without
    reduction = attach(model, method=method, processes_per_device=2, timeout_s=patience_s)
    rank = dist.get_rank()
    message, begin_s = "nothing", time.monotonic()
    try:
        for step in range(100_000 if how == "is killed at random" else 5):
            x, y = batch(step)
            mine = evenly(step, 0)
            loss = nn.functional.mse_loss(model(x[mine]), y[mine])
            # In the first two steps ranks also exchange what only DDP itself sends.
            if rank == victim and how == "is killed at random" and step == 2:
                delay_s = random.Random(seed).uniform(0.0, 0.3)
                threading.Timer(delay_s, lambda: os.kill(os.getpid(), 9)).start()
            if rank == victim and step == 2:
                begin_s = time.monotonic()
                if how == "ends":
                    os._exit(0)
                if how == "is killed":
                    os.kill(os.getpid(), 9)
                if how == "hangs":
                    while len([*Path(folder).glob("said-*")]) < dist.get_world_size() - 1:
                        time.sleep(0.05)  # until all others have said so
                if how == "skips":
                    continue
            begin_s = time.monotonic()
            loss.backward()
    except RuntimeError as error:
        message = str(error)
    took_s = time.monotonic() - begin_s
    notes = f"{took_s}\n{reduction.failure}\n{message}"
    Path(folder, f"said-{rank}").write_text(notes, encoding="utf-8")
    os._exit(0)  # as a script that fails does, without waiting for the others
