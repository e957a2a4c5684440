"""What ranks do for `colocation_reduce`: timed averages."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from wattree.runtime.reduce.backends import make_backend
from wattree.runtime.reduce.members import Members
from wattree.runtime.transfers import SentTraffic

_CPU = torch.device("cpu")


def timed(mib: int, turns: int, warm_up: int) -> dict[str, list[float]]:
    """Return times of averages over 4 processes, of turn after turn in one start of them. [s]

    Args:
        mib: Of float32 gradients. [MiB]
        warm_up: Before those: memory is had and connections are opened.
    """
    gradients = torch.ones(mib * 2**20 // 4)
    shared = _shared_average()
    ways: dict[str, Callable[[], object]] = {
        "shared memory": lambda: shared(gradients),
        "gloo": lambda: dist.all_reduce(gradients),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(warm_up + turns):
        for name, reduce in ways.items():
            dist.barrier()
            begin_s = time.perf_counter()
            reduce()
            if turn >= warm_up:
                found[name].append(time.perf_counter() - begin_s)
    return found


def _shared_average() -> Callable[[torch.Tensor], None]:
    every = tuple(range(dist.get_world_size()))
    members = Members(place=dist.get_rank(), ranks=every, leaders=(0,), everybody=every)
    way = make_backend(
        "hierarchical", dist.group.WORLD, members, _CPU, traffic=SentTraffic(), timeout_s=60.0
    )
    return lambda gradients: way.average_(gradients, 0, None)
