"""Points as PyTorch programs. Runs in the worker processes; the only file here that needs torch."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from wattree.measure.profile.points import Pass, PointFamily, ProfilePoint

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
#: Messages between pairs of processors that runtimes send at once. [B]
_SMALL_BYTES = 64 << 10
#: Slices of a weight that is multiplied slice by slice; length of a batch of matmuls over that of
#: the concurrent exchange, on accelerators and on CPUs, where all of the exchange must overlap.
_SLICES, _BATCH, _LONG_BATCH = 4, 1.0, 2.0

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
        self._clock = time.thread_time
        self._batches: dict[int, int] = {}  # bytes of an exchange → matmuls that overlap it

    def seconds(self, point: ProfilePoint, window_s: float) -> tuple[float, float]:
        """Return wall time and processor time of one call of a point, means over a window. [s]

        The processor time is that of the thread that calls, which computes as long as any does; of
        exchanges that overlap matmuls, it is that of all threads, because others carry the
        messages.
        """
        for library in (torch.backends.cuda.matmul, torch.backends.cudnn):
            library.allow_tf32 = point.precision == "tf32"
        is_overlap = point.kind is PointFamily.OVERLAP
        self._clock = time.process_time if is_overlap else time.thread_time
        if is_overlap:
            return self._overlap(point, window_s)
        if point.kind is PointFamily.COLLECTIVE:
            return self._in_step(self._collective(point), window_s)
        return self._alone(self._program(point), window_s)

    # ------------------------------------------------------------------- how long

    def _alone(self, run: Run, window_s: float) -> tuple[float, float]:
        """Return the times of one call; each rank stops by its own clock. [s]"""
        once_s = self._timed(run, 2)[0]
        if self.device != "cpu":
            return self._counted(run, once_s, window_s)
        if self.ranks > 1:
            dist.barrier()  # all compute at once, and share caches and memory
        calls, began, busy = 0, time.perf_counter(), time.thread_time()
        while calls < 2 or time.perf_counter() - began < window_s:
            run()
            calls += 1
        return (time.perf_counter() - began) / calls, (time.thread_time() - busy) / calls

    def _in_step(self, run: Run, window_s: float) -> tuple[float, float]:
        """Return the times of one call, with the same number of calls on all ranks. [s]"""
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
        began, busy = time.perf_counter(), self._clock()
        for _ in range(count):
            run()
        self._wait()
        return (time.perf_counter() - began) / count, (self._clock() - busy) / count

    def _wait(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    # ------------------------------------------------------------------- what

    def _program(self, point: ProfilePoint) -> Run:
        programs: dict[PointFamily, Callable[[ProfilePoint], Run]] = {
            PointFamily.PRODUCT: self._product,
            PointFamily.STREAM: self._stream,
            PointFamily.UPDATE: self._update,
            PointFamily.STEP: self._step,
            PointFamily.COLLATE: _collate,
            PointFamily.SLICES: self._sliced,
            PointFamily.COPY: self._copy,
        }
        return programs[point.kind](point)

    def _tensor(self, *shape: int, precision: str = "fp32") -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(_DTYPES[precision])

    def _product(self, point: ProfilePoint) -> Run:
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

    def _sliced(self, point: ProfilePoint) -> Run:
        """Return a matmul with a weight, as a whole or in slices of its inner features."""
        which, _, how = point.name.partition(".")
        if how == "whole":
            return self._product(replace(point, kind=PointFamily.PRODUCT, name=which))
        one = self._tensor(point.columns, point.inner)
        weights = itertools.cycle([one, *(one.clone() for _ in range(_copies(one) - 1))])
        x, gradient = (self._tensor(width, point.rows) for width in (point.inner, point.columns))
        xs, bias = x.chunk(_SLICES), self._tensor(point.columns)

        def forward() -> torch.Tensor:
            first, *others = zip(xs, next(weights).chunk(_SLICES, dim=1), strict=True)
            z = torch.addmm(bias, first[0].t(), first[1].t())
            for part, weight in others:
                z.addmm_(part.t(), weight.t())
            return z

        def input_gradient() -> torch.Tensor:
            made = torch.empty_like(x)
            parts = zip(made.chunk(_SLICES), next(weights).chunk(_SLICES, dim=1), strict=True)
            for room, weight in parts:
                room.copy_((gradient.t() @ weight).t())
            return made

        return forward if which == Pass.FORWARD else input_gradient

    def _stream(self, point: ProfilePoint) -> Run:
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

    def _update(self, point: ProfilePoint) -> Run:
        """Return the update of one parameter that is not cached."""
        one = torch.nn.Parameter(self._tensor(point.size_bytes // 4))
        others = max(_copies(one) // 2, 1)
        parameters = [one, *(torch.nn.Parameter(one.detach().clone()) for _ in range(others))]
        for each in parameters:
            each.grad = torch.full_like(each, 1e-6)
        make = _OPTIMIZERS[point.name]
        turns = itertools.cycle([make([each]) for each in parameters])
        return lambda: next(turns).step()

    def _step(self, point: ProfilePoint) -> Run:
        """Return a training step of layers with negligible compute: its overheads."""
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

    def _copy(self, point: ProfilePoint) -> Run:
        there = torch.empty(point.size_bytes, dtype=torch.uint8, device=self.device)
        here = torch.empty(point.size_bytes, dtype=torch.uint8, pin_memory=point.name == "pinned")
        return lambda: there.copy_(here, non_blocking=True)

    # ------------------------------------------------------------------- together

    def _collective(self, point: ProfilePoint) -> Run:
        """Return a collective as runtimes implement it, including its local part."""
        values = max(point.size_bytes // 4 // self.ranks, 1) * self.ranks
        whole = torch.zeros(values, device=self.device)
        own = torch.zeros(values // self.ranks, device=self.device)
        if point.name == "all_reduce":
            return lambda: dist.all_reduce(whole)
        if self.device != "cpu":
            if point.name == "all_gather":
                return lambda: dist.all_gather_into_tensor(whole, own)
            return lambda: dist.reduce_scatter_tensor(own, whole)
        # Between pairs: gloo's own reduce-scatter moves the bytes of an all-reduce, and its gather
        # takes no uneven parts.
        blocks, received = whole.chunk(self.ranks), torch.zeros_like(whole)
        if point.name == "all_gather":
            alike = [own] * self.ranks

            def all_gather() -> None:
                self._exchanged(alike, blocks)()

            return all_gather

        def reduce_scatter() -> torch.Tensor:
            self._exchanged(blocks, received.chunk(self.ranks))()
            return received.view(self.ranks, -1).sum(0)

        return reduce_scatter

    def _exchanged(
        self, parts: Sequence[torch.Tensor], into: Sequence[torch.Tensor]
    ) -> Callable[[], None]:
        """Start sending to and receiving from each rank; return a function that awaits the end.

        Small parts go by one all-to-all, which takes less of processors.
        """
        if parts[0].numel() * parts[0].element_size() <= _SMALL_BYTES:
            received = torch.empty(self.ranks * parts[0].numel())
            work = dist.all_to_all_single(received, torch.cat(list(parts)), async_op=True)

            def settle() -> None:
                work.wait()
                for room, part in zip(into, received.chunk(self.ranks), strict=True):
                    room.copy_(part)

            return settle
        after = [(self.rank + step) % self.ranks for step in range(1, self.ranks)]
        works = [dist.irecv(into[peer], peer) for peer in reversed(after)]
        works += [dist.isend(parts[peer], peer) for peer in after]
        into[self.rank].copy_(parts[self.rank])

        def wait() -> None:
            for work in works:
                work.wait()

        return wait

    def _batch(self, exchange: Run, product: Run, window_s: float) -> int:
        """Return the number of matmuls concurrent with an exchange, the same on all ranks."""
        times = torch.tensor(
            [self._in_step(each, window_s)[0] for each in (exchange, product)],
            dtype=torch.float64,
            device=self.device,
        )
        dist.all_reduce(times, dist.ReduceOp.MAX)
        longer = _LONG_BATCH if self.device == "cpu" else _BATCH
        return max(round(longer * float(times[0] / times[1])), 1)

    def _overlap(self, point: ProfilePoint, window_s: float) -> tuple[float, float]:
        """Return the times of a batch of matmuls, of an exchange, or of both concurrently. [s]

        The batch is as long as the exchange, so that they overlap all the time; on
        CPUs, where an exchange takes longer while it overlaps matmuls, twice as long.
        """
        product = self._product(
            ProfilePoint(
                kind=PointFamily.PRODUCT, name=Pass.FORWARD, rows=64, inner=1024, columns=1024
            )
        )
        exchange = self._collective(
            ProfilePoint(
                kind=PointFamily.COLLECTIVE, name="all_gather", size_bytes=point.size_bytes
            )
        )
        whole = torch.zeros(point.size_bytes // 4 // self.ranks * self.ranks, device=self.device)
        own = whole[: len(whole) // self.ranks].clone()
        if point.size_bytes not in self._batches:
            self._batches[point.size_bytes] = self._batch(exchange, product, window_s / 4)
        count, on_cpu = self._batches[point.size_bytes], self.device == "cpu"
        blocks, alike = whole.chunk(self.ranks), [own] * self.ranks

        def products() -> None:
            for _ in range(count):
                product()

        def both() -> None:
            if on_cpu:
                wait = self._exchanged(alike, blocks)
            else:
                wait = dist.all_gather_into_tensor(whole, own, async_op=True).wait
            products()
            wait()

        return self._in_step(
            {"product": products, "exchange": exchange, "both": both}[point.name], window_s
        )


def _copies(tensor: torch.Tensor) -> int:
    """Return how many tensors of a size are needed so that none is cached when its turn comes."""
    size = tensor.numel() * tensor.element_size()
    return min(max(math.ceil(_COLD_BYTES / size), 1), 32) if size >= 1 << 20 else 1


def _collate(point: ProfilePoint) -> Run:
    """Return a function that collates samples in memory to a batch, as PyTorch's loader does."""
    from torch.utils.data import default_collate

    samples = torch.randn(4 * point.rows, point.inner)
    order = itertools.cycle(torch.randperm(4 * point.rows).split(point.rows))
    return lambda: default_collate([(samples[i], i) for i in next(order).tolist()])
