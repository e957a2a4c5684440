"""What ranks do for `colocation_reduce`: timed averages, and bytes that leave a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

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
    shared = _way("hierarchical", dist.get_world_size())
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


def payload(method: str, processes: int, mib: int, turns: int, link: str) -> dict[str, float]:
    """Return what a host's link carried per average, and what the reduction counted. [B]

    Args:
        processes: On each device.
        mib: Of float32 gradients. [MiB]
        link: Interface of the host that stands for a device.
    """
    gradients = torch.ones(mib * 2**20 // 4)
    traffic = SentTraffic()
    reduce = _way(method, processes, traffic)
    reduce(gradients)
    traffic.reset()
    dist.barrier()
    before = _carried(link)
    for _ in range(turns):
        reduce(gradients)
    dist.barrier()
    return {
        "carried": (_carried(link) - before) / turns,
        "counted": traffic.total_bytes / turns,
    }


def _way(
    method: str, processes: int, traffic: SentTraffic | None = None
) -> Callable[[torch.Tensor], None]:
    rank, world = dist.get_rank(), dist.get_world_size()
    first = rank // processes * processes
    members = Members(
        place=rank - first,
        ranks=tuple(range(first, first + processes)),
        leaders=tuple(range(0, world, processes)),
        everybody=tuple(range(world)),
    )
    way = make_backend(
        method, dist.group.WORLD, members, _CPU, traffic=traffic or SentTraffic(), timeout_s=60.0
    )
    return lambda gradients: way.average_(gradients, 0, None)


def _carried(link: str) -> int:
    """Return the bytes that an interface has sent, headers included."""
    return int(Path(f"/sys/class/net/{link}/statistics/tx_bytes").read_text(encoding="ascii"))
