"""What ranks do for the measures over links: steps of every contestant, in turn."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from wattree.runtime import (
    ColumnParallelLinear,
    GatherRowsLinear,
    Group,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
)

__all__ = ["steps"]


class Contestant:
    """A stack of equal layers with its optimizer, input and counters.

    Args:
        told: `kind`, `n`, `layers`, `rows`, and what the layers take.
    """

    def __init__(self, told: dict[str, Any]) -> None:
        told = dict(told)
        kind, n, count, rows = (told.pop(key) for key in ("kind", "n", "layers", "rows"))
        self.group = Group()
        made: list[nn.Module] = []
        for index in range(count):
            made += [_layer(kind, index, n, self.group, told), nn.ReLU()]
        self.model = nn.Sequential(*made[:-1])
        width = n if kind in {"megatron", "sequence"} else made[0].in_shard
        rows = rows // self.group.size if kind == "sequence" else rows
        self.x = torch.randn(rows, 1, width)
        with torch.no_grad():
            self.target = torch.randn_like(self.model(self.x))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.seconds: list[float] = []
        self.waited: list[float] = []

    def step(self) -> None:
        """Train one step, and note how long it took and how much of that it waited."""
        self.group.traffic.reset()
        dist.barrier()
        begin_s = time.perf_counter()
        self.optimizer.zero_grad()
        (self.model(self.x) - self.target).square().mean().backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin_s)
        self.waited.append(self.group.traffic.waited_s)


def steps(contestants: dict[str, dict[str, Any]], turns: int, device: str) -> dict[str, Any]:
    """Return times, waits and bytes of each contestant.

    Args:
        contestants: By name.
        turns: Steps of each, after one that is not counted.
        device: Interface whose counter is read.
    """
    torch.manual_seed(0)
    made = {name: Contestant(told) for name, told in contestants.items()}
    gc.disable()
    for each in made.values():
        each.step()
        each.seconds.clear()
        each.waited.clear()
    counters = {name: _counted(each.step, device) for name, each in made.items()}
    for _ in range(turns):
        for each in made.values():
            each.step()
    return {
        name: {
            "seconds": each.seconds,
            "waited": each.waited,
            "payload": each.group.traffic.total_bytes,
            "wire": counters[name],
            "parameters": sum(p.numel() for p in each.model.parameters()),
        }
        for name, each in made.items()
    }


def _layer(kind: str, index: int, n: int, group: Group, told: dict[str, Any]) -> nn.Module:
    kinds: dict[str, Callable[..., nn.Module]] = {
        "phantom": PhantomLinear,
        "low rank": LowRankLinear,
        "rows": GatherRowsLinear,
        "megatron": RowParallelLinear if index % 2 else ColumnParallelLinear,
        "sequence": RowParallelLinear if index % 2 else ColumnParallelLinear,
    }
    more = {"sequence_parallel": True} if kind == "sequence" else {}
    return kinds[kind](n, n, group=group, name=f"layer {index}", **told, **more)


def _counted(step: Callable[[], None], device: str) -> int:
    """Return the bytes that an interface sent during a step, barriers and headers included. [B]"""
    dist.barrier()
    before = _sent_bytes(device)
    step()
    dist.barrier()
    time.sleep(0.2)  # what others still acknowledge
    return _sent_bytes(device) - before


def _sent_bytes(device: str) -> int:
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, numbers = line.strip().partition(":")
        if name == device:
            return int(numbers.split()[8])
    raise RuntimeError(f"no interface '{device}'")
