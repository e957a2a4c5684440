"""One rank of a contestant: builds layers and trains them on request, a JSON line at a time."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from datetime import timedelta
from enum import Enum, auto
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.phantom_contestants import Contestant
from wattree.measure.allocator import cache_freed_memory
from wattree.runtime.group import Group
from wattree.runtime.layers import (
    ColumnParallelLinear,
    GatherRowsLinear,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
)
from wattree.runtime.transfers import Pending

_TIMEOUT_S = 60.0
_LEARNING_RATE = 0.01
#: Rows, contraction and columns of products alongside gathers, and weights that take turns, so that
#: they are read from memory.
_PRODUCT, _WEIGHTS = (64, 1024, 1024), 16


class Training:
    """A stack of linear layers with ReLU between them, its optimizer and one batch."""

    def __init__(self, contestant: Contestant, group: Group) -> None:
        torch.manual_seed(7)
        self.group, self.batch, self.width = group, contestant.batch, contestant.width
        self.layers, layout = stack_of(contestant, group)
        self.x = self._part(torch.randn(self.batch, self.width), layout)
        self.x.requires_grad_(contestant.input_gradient)
        self.target = self._part(torch.randn(self.batch, self.width), layout)
        parameters = [each for layer in self.layers for each in layer.parameters()]
        self.parameters = sum(each.numel() for each in parameters)
        self.optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE)

    def step(self) -> float:
        """Take one step and return the loss of this rank's part."""
        z = self.x
        for number, layer in enumerate(self.layers):
            z = layer(torch.relu(z) if number else z)
        loss = nn.functional.mse_loss(z, self.target, reduction="sum") / (self.batch * self.width)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.x.grad = None
        return float(loss.detach())

    def _part(self, whole: Tensor, layout: Layout) -> Tensor:
        if layout is Layout.WHOLE:
            return whole
        parts = whole.chunk(self.group.size, dim=1 if layout is Layout.FEATURES else 0)
        return parts[self.group.rank].contiguous()


class _Waits:
    """Sums the time in which the program waits for others; watches a group (`TransferWatch`).

    Attributes:
        total_s: The sum since it was last set to 0. [s]
    """

    total_s = 0.0

    def mark(self) -> float:
        return time.perf_counter()

    def waited(self, place: str, begun: float, since: float, until: float) -> None:  # noqa: ARG002
        self.total_s += until - since


def main() -> int:
    """Serve orders until standard input closes."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    given = json.loads(sys.argv[1])
    out, sys.stdout = sys.stdout, sys.stderr
    torch.set_num_threads(1)
    cache_freed_memory()  # as `wattree train`
    dist.init_process_group(
        "gloo",
        init_method="file://" + given["store"],
        rank=given["rank"],
        world_size=given["size"],
        timeout=timedelta(seconds=_TIMEOUT_S),
    )
    group = Group(timeout_s=_TIMEOUT_S)
    group.watch = waits = _Waits()
    live: dict[str, Training] = {}
    print("{}", file=out, flush=True)
    for line in sys.stdin:
        try:
            said = _obey(json.loads(line), group, waits, live)
        except Exception as error:  # noqa: BLE001 - the parent reports it with the rank
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=out, flush=True)
    os._exit(0)  # gloo's destructors wait for peers that may be gone


def _obey(
    order: dict[str, Any], group: Group, waits: _Waits, live: dict[str, Training]
) -> dict[str, Any]:
    name = order["name"]
    if order["do"] == "exchange":
        return _exchanges(group, order)
    if order["do"] == "drop":
        del live[name]
        return {}
    if order["do"] == "build":
        live[name] = Training(Contestant(**order["contestant"]), group)
        return {"parameters": live[name].parameters}
    training = live[name]
    group.traffic.reset()
    waits.total_s = 0.0
    time.sleep(max(0.0, order["at"] - time.monotonic()))
    before_s, begin = _processor_s(), time.monotonic()
    for _ in range(order["steps"]):
        loss = training.step()
    end = time.monotonic()
    return {
        "begin": begin,
        "end": end,
        "loss": loss,
        "waited_s": waits.total_s,
        "sent_bytes": group.traffic.total_bytes,
        "processor_s": _processor_s() - before_s,
    }


def _exchanges(group: Group, order: dict[str, Any]) -> dict[str, float]:
    """Return the median time of exchanges, of products, or of both, and processor time. [s]

    One after the other; products run alongside an exchange, or after it. The processor time is that
    of all.
    """
    part, times = torch.zeros(order["elements"]), []
    sizes, products = [order["elements"]] * group.size, range(order["products"])
    x = torch.randn(_PRODUCT[:2])
    weights = itertools.cycle([torch.randn(_PRODUCT[1:]) for _ in range(_WEIGHTS)])

    def started() -> Pending | None:
        if order["kind"] == "all_gather":
            return group.all_gather(part, sizes, "exchanges")
        return group.all_reduce(part, "exchanges") if order["kind"] == "all_reduce" else None

    def once() -> None:
        pending = started()
        if pending is not None:
            pending.unless(order["alongside"])
        for _ in products:
            torch.mm(x, next(weights))
        if pending is not None:
            pending.wait()

    once()
    dist.barrier()
    before_s = _processor_s()
    for _ in range(order["times"]):
        begin = time.monotonic()
        once()
        times.append(time.monotonic() - begin)
    return {"seconds": statistics.median(times), "processor_s": _processor_s() - before_s}


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Layout(Enum):
    """What of the samples a rank is fed, and what of the last layer's output it holds."""

    WHOLE = auto()
    FEATURES = auto()
    SAMPLES = auto()


_LAYOUTS = {"megatron": Layout.WHOLE, "sequence": Layout.SAMPLES}


def stack_of(contestant: Contestant, group: Group) -> tuple[list[nn.Module], Layout]:
    """Return a rank's layers in order, and the layout of what goes in and comes out."""
    layers = [_layer(contestant, group, number) for number in range(contestant.depth)]
    return layers, _LAYOUTS.get(contestant.kind, Layout.FEATURES)


def _layer(contestant: Contestant, group: Group, number: int) -> nn.Module:
    n, ghosts = contestant.width, contestant.ghosts
    common = {"group": group, "overlap": contestant.overlap, "name": f"layers.{number}"}
    match contestant.kind:
        case "phantom" | "shared" | "block":
            variant = "shared" if contestant.kind == "shared" else "pair"
            return PhantomLinear(n, n, ghosts=ghosts, variant=variant, **common)
        case "low-rank":
            return LowRankLinear(n, n, ghosts=ghosts, **common)
        case "rows":
            return GatherRowsLinear(n, n, **common)
        case "megatron" | "sequence":
            kind = RowParallelLinear if number % 2 else ColumnParallelLinear
            return kind(n, n, sequence_parallel=contestant.kind == "sequence", **common)
    raise ValueError(contestant.kind)


if __name__ == "__main__":
    sys.exit(main())
