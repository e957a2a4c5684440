"""The products of a phantom layer on one of its ranks, as `PhantomOperator` calls them, and clocks.

Letters as in docs/phantom.md: n features over p ranks, m = n/p of each, k ghosts, B samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: Written between calls on an accelerator, so that operands come from its memory and not from a
#: cache, as they do in a step: several times the largest last-level cache (256 MB, MI300X).
_FLUSH_BYTES: Final = 1 << 30
_WARM_UP: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one layer.

    Attributes:
        width: n, inputs and outputs of the whole layer.
        ranks: p, which divides the width.
        ghosts: k, of each rank.
        batch: B, samples of a micro-batch.
    """

    width: int
    ranks: int
    ghosts: int
    batch: int

    @property
    def shard(self) -> int:
        """m, features of a rank."""
        return self.width // self.ranks

    @property
    def others(self) -> int:
        """Ghosts that a rank gets, (p - 1) k."""
        return (self.ranks - 1) * self.ghosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One product.

    Attributes:
        name: `local`, `compress`, `decompress`, and `rows` of tensor parallelism, to compare with.
        direction: `forward` or `backward`.
        makes: What, in letters of docs/phantom.md.
        shape: Rows, columns and what is summed over.
        adds: Whether it adds to what is there, which then is read as well.
        run: Runs it once and returns what it makes.
    """

    name: str
    direction: str
    makes: str
    shape: tuple[int, int, int]
    run: Callable[[], Any]
    adds: bool = False

    @property
    def flop(self) -> float:
        """Of one call. [FLOP]"""
        rows, columns, summed = self.shape
        return 2.0 * rows * columns * summed

    def bytes(self, element: int) -> float:
        """Return the least that is read and written, each operand once. [B]

        Args:
            element: Size of an element. [B]
        """
        rows, columns, summed = self.shape
        written = rows * columns
        return float(element * (rows * summed + summed * columns + written * (1 + self.adds)))


def kernels_of(sizes: Sizes, *, device: str, dtype: Any) -> list[Kernel]:
    """Return the products of one rank, on operands of their own.

    Args:
        device: Where, as torch calls it.
    """
    import torch

    stream = torch.Generator(device=device).manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(*shape, generator=stream, device=device).to(dtype)

    batch, m, k, others, n = sizes.batch, sizes.shard, sizes.ghosts, sizes.others, sizes.width
    x, delta, z, d_x = drawn(batch, m), drawn(batch, m), drawn(batch, m), drawn(batch, m)
    weight, compressor, decompressor = drawn(m, m), drawn(k, m), drawn(m, others)
    got, h = drawn(others, batch), drawn(k, batch)
    whole, rows = drawn(batch, n), drawn(m, n)
    mm, back = torch.mm, delta.t()
    ghosts_in, ghosts_out = decompressor.t(), got.t()
    made = [
        ("local", "forward", "z = x L'", (batch, m, m), lambda: mm(x, weight.t())),
        ("compress", "forward", "g = C x'", (k, batch, m), lambda: mm(compressor, x.t())),
        ("local", "backward", "dx = d L", (batch, m, m), lambda: mm(delta, weight)),
        ("local", "backward", "dL = d' x", (m, m, batch), lambda: mm(back, x)),
        ("compress", "backward", "dC = h x", (k, m, batch), lambda: mm(h, x)),
        ("decompress", "backward", "u = D' d'", (others, batch, m), lambda: mm(ghosts_in, back)),
        ("decompress", "backward", "dD = d' g'", (m, others, batch), lambda: mm(back, ghosts_out)),
        ("rows", "forward", "z = X W'", (batch, m, n), lambda: mm(whole, rows.t())),
    ]  # fmt: skip
    found = [
        Kernel(name=name, direction=direction, makes=makes, shape=shape, run=run)
        for name, direction, makes, shape, run in made
    ]
    adding = [
        ("decompress", "forward", "z += (D g)'", (batch, m, others), z, ghosts_out, ghosts_in),
        ("compress", "backward", "dx += h' C", (batch, m, k), d_x, h.t(), compressor),
    ]
    for name, direction, makes, shape, target, left, right in adding:
        run = _adding(target, left, right)
        found.append(
            Kernel(name=name, direction=direction, makes=makes, shape=shape, run=run, adds=True)
        )
    return sorted(found, key=_in_order)


def median_s(kernel: Kernel, *, device: str, repeats: int) -> float:
    """Return the median time of a call, its operands not in a cache. [s]

    On an accelerator each call stands between two events of its own, behind a write that clears
    the cache and lets the host run ahead, so that no launch is waited for. On a processor it is
    clocked as it is.

    Args:
        repeats: Calls that are timed, after some that are not.
    """
    import torch

    for _ in range(_WARM_UP):
        kernel.run()
    if torch.device(device).type != "cuda":
        return statistics.median(_clocked(kernel.run) for _ in range(repeats))
    scratch = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
    marks = []
    for _ in range(repeats):
        scratch.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kernel.run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize(device)
    return statistics.median(begin.elapsed_time(end) / 1e3 for begin, end in marks)


def _adding(target: Any, left: Any, right: Any) -> Callable[[], Any]:
    # What is there counts half, so that it stays finite however often it is added to.
    return lambda: target.addmm_(left, right, beta=0.5)


def _clocked(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _in_order(kernel: Kernel) -> tuple[int, int]:
    names = ("local", "compress", "decompress", "rows")
    return ("forward", "backward").index(kernel.direction), names.index(kernel.name)
