"""Points as PyTorch programs. Runs in the worker processes; the only file here that needs torch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from wattree.measure.profile.points import Kind, Pass, Point

__all__ = ["Bench"]

_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
#: Operands that a training step would not find in a cache are taken in turn from so much memory.
_COLD_BYTES = 128 << 20
#: Elementwise operands up to this size are those that the operator before has just written.
_WARM_BYTES = 4 << 20
_MOST_COUNT = 100_000

_OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-6),
}

Run = Callable[[], Any]


class Bench:
    """Times points on one rank.

    Attributes:
        device: `cpu` or `cuda:0`.
        rank, ranks: Of the processes that measure together.
    """

    def __init__(self, device: str, rank: int, ranks: int) -> None:
        self.device, self.rank, self.ranks = device, rank, ranks

    def seconds(self, point: Point, window_s: float) -> tuple[float, float]:
        """Return wall time and processor time of one call of a point, means over a window. [s]

        The processor time is that of the thread that calls, which computes as long as any does.
        """
        torch.backends.cuda.matmul.allow_tf32 = point.precision == "tf32"
        if point.kind is Kind.OVERLAP:
            return self._overlap(point, window_s)
        if point.kind is Kind.COLLECTIVE:
            return self._in_step(self._collective(point), window_s)
        return self._alone(self._program(point), window_s)

    # ------------------------------------------------------------------- how long

    def _alone(self, run: Run, window_s: float) -> tuple[float, float]:
        """Return the times of one call; each rank stops by its own clock. [s]"""
        once_s = self._timed(run, 2)[0]
        if self.device != "cpu":
            return self._counted(run, once_s, window_s)
        calls, began, busy = 0, time.perf_counter(), time.thread_time()
        while calls < 2 or time.perf_counter() - began < window_s:
            run()
            calls += 1
        return (time.perf_counter() - began) / calls, (time.thread_time() - busy) / calls

    def _in_step(self, run: Run, window_s: float) -> tuple[float, float]:
        """Return the times of one call that all ranks make as often. [s]"""
        self._timed(run, 2)
        longest = torch.tensor([self._timed(run, 2)[0]], dtype=torch.float64, device=self.device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return self._counted(run, float(longest), window_s)

    def _counted(self, run: Run, once_s: float, window_s: float) -> tuple[float, float]:
        count = min(max(math.ceil(window_s / max(once_s, 1e-7)), 3), _MOST_COUNT)
        if self.ranks > 1:
            dist.barrier()
        return self._timed(run, count)

    def _timed(self, run: Run, count: int) -> tuple[float, float]:
        self._wait()
        began, busy = time.perf_counter(), time.thread_time()
        for _ in range(count):
            run()
        self._wait()
        return (time.perf_counter() - began) / count, (time.thread_time() - busy) / count

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    # ------------------------------------------------------------------- what

    def _program(self, point: Point) -> Run:
        match point.kind:
            case Kind.PRODUCT:
                return self._product(point)
            case Kind.STREAM:
                return self._stream(point)
            case Kind.UPDATE:
                return self._update(point)
            case Kind.STEP:
                return self._step(point)
            case Kind.COLLATE:
                return _collate(point)
            case _:
                return self._copy(point)

    def _tensor(self, *shape: int, precision: str = "fp32") -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(_DTYPES[precision])

    def _product(self, point: Point) -> Run:
        precision, linear = point.precision, torch.nn.functional.linear
        x = self._tensor(point.rows, point.inner, precision=precision)
        gradient = self._tensor(point.rows, point.columns, precision=precision)
        if point.name == Pass.WEIGHT_GRADIENT:
            return lambda: gradient.t() @ x
        one = self._tensor(point.columns, point.inner, precision=precision)
        weights = itertools.cycle([one, *(one.clone() for _ in range(_copies(one) - 1))])
        if point.name == Pass.INPUT_GRADIENT:
            return lambda: gradient @ next(weights)
        bias = self._tensor(point.columns, precision=precision)
        return lambda: linear(x, next(weights), bias)

    def _stream(self, point: Point) -> Run:
        one = self._tensor(point.size_bytes // 4)
        count = 1 if point.size_bytes <= _WARM_BYTES else max(_copies(one) // 2, 1)
        operands = itertools.cycle([(one.clone(), one.clone()) for _ in range(count)])
        if point.name == "relu":
            return lambda: torch.relu(next(operands)[0])
        if point.name == "relu_backward":
            backward = torch.ops.aten.threshold_backward
            return lambda: backward(*next(operands), 0)
        if point.name == "add":
            return lambda: torch.add(*next(operands))

        def add_in_place() -> None:
            one, other = next(operands)
            one.add_(other, alpha=1e-9)

        return add_in_place

    def _update(self, point: Point) -> Run:
        """Return the update of one parameter that is not in a cache."""
        one = torch.nn.Parameter(self._tensor(point.size_bytes // 4))
        others = max(_copies(one) // 2, 1)
        parameters = [one, *(torch.nn.Parameter(one.detach().clone()) for _ in range(others))]
        for each in parameters:
            each.grad = torch.full_like(each, 1e-6)
        make = _OPTIMIZERS[point.name]
        turns = itertools.cycle([make([each]) for each in parameters])
        return lambda: next(turns).step()

    def _step(self, point: Point) -> Run:
        """Return a training step of layers too small to compute anything: its overheads."""
        torch.manual_seed(0)
        layers = [
            module
            for _ in range(point.inner)
            for module in (torch.nn.Linear(8, 8), torch.nn.ReLU())
        ]
        model = torch.nn.Sequential(*layers).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        x, y = self._tensor(point.rows, 8), self._tensor(point.rows, 8)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

        return step

    def _copy(self, point: Point) -> Run:
        there = torch.empty(point.size_bytes, dtype=torch.uint8, device=self.device)
        here = torch.empty(point.size_bytes, dtype=torch.uint8, pin_memory=point.name == "pinned")
        return lambda: there.copy_(here, non_blocking=True)

    # ------------------------------------------------------------------- together

    def _collective(self, point: Point) -> Run:
        """Return a collective as runtimes make it, its local part included."""
        values = max(point.size_bytes // 4 // self.ranks, 1) * self.ranks
        whole = torch.zeros(values, device=self.device)
        own = torch.zeros(values // self.ranks, device=self.device)
        if point.name == "all_reduce":
            return lambda: dist.all_reduce(whole)
        if point.name == "all_gather":
            return lambda: dist.all_gather_into_tensor(whole, own)
        if self.device != "cpu":
            return lambda: dist.reduce_scatter_tensor(own, whole)
        received = torch.zeros_like(whole)

        def reduce_scatter() -> torch.Tensor:
            # gloo's own moves the bytes of an all-reduce.
            dist.all_to_all_single(received, whole)
            return received.view(self.ranks, -1).sum(0)

        return reduce_scatter

    def _overlap(self, point: Point, window_s: float) -> tuple[float, float]:
        """Return the times of a batch of products, of an exchange, or of both at once. [s]

        The batch is as long as the exchange, so that each has the other beside it all the time.
        """
        product = self._product(
            Point(kind=Kind.PRODUCT, name=Pass.FORWARD, rows=64, inner=1024, columns=1024)
        )
        exchange = self._collective(
            Point(kind=Kind.COLLECTIVE, name="all_gather", size_bytes=point.size_bytes)
        )
        whole = torch.zeros(point.size_bytes // 4 // self.ranks * self.ranks, device=self.device)
        own = whole[: len(whole) // self.ranks].clone()
        times = torch.tensor(
            [self._in_step(exchange, window_s / 4)[0], self._in_step(product, window_s / 4)[0]],
            dtype=torch.float64,
            device=self.device,
        )
        dist.all_reduce(times, dist.ReduceOp.MAX)
        count = max(round(float(times[0] / times[1])), 1)

        def products() -> None:
            for _ in range(count):
                product()

        def both() -> None:
            pending = dist.all_gather_into_tensor(whole, own, async_op=True)
            products()
            pending.wait()

        return self._in_step(
            {"product": products, "exchange": exchange, "both": both}[point.name], window_s
        )


def _copies(tensor: torch.Tensor) -> int:
    """Return how many tensors of a size are no longer in a cache when their turn comes."""
    size = tensor.numel() * tensor.element_size()
    return min(max(math.ceil(_COLD_BYTES / size), 1), 32) if size >= 1 << 20 else 1


def _collate(point: Point) -> Run:
    """Return the making of a batch from samples in memory, as a loader of PyTorch makes it."""
    from torch.utils.data import default_collate

    samples = torch.randn(4 * point.rows, point.inner)
    order = itertools.cycle(torch.randperm(4 * point.rows).split(point.rows))
    return lambda: default_collate([(samples[i], i) for i in next(order).tolist()])
