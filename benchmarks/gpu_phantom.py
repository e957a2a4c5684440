"""Kernels of a phantom layer on this machine's accelerator, held against its roofline.

    python -m benchmarks.gpu_phantom [--width N] [--ranks P,P] [--ghosts K,K] [--batch B]
        [--device cuda:0] [--known-as NAME] [--repeats R] [--out PATH]

The local, compress and decompress products of one rank of a layer of 16,384 features in bf16 (and
the product of tensor parallelism, to compare with), each timed by events of the device. The
roofline is that of the catalog's datasheet: the longer of FLOP over its peak and bytes over its
memory bandwidth, each operand moved once. The result names device, driver and software; where there
is no device nothing is written, unless `--device cpu` asks for the processor, which has a roofline
only if `--known-as` names one.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.gpu_phantom_kernels import Kernel, Sizes, kernels_of, median_s
from benchmarks.gpu_training import (
    RESULTS,
    described,
    environment,
    refused,
    result_of,
    sees_no_device,
    write_result,
)
from wattree.errors import MissingExtraError, WattreeError
from wattree.hardware import Device, Precision, canonical_name, load_device

WIDTH, BATCH, REPEATS = 16_384, 4_096, 30
RANKS, GHOSTS = (4, 8, 16), (64, 256)
_ELEMENT = 2  # bytes of bf16


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kernel of one layer.

    Attributes:
        kernel, direction, makes, shape: As of `Kernel`.
        time_s: Median of the calls. [s]
        flop, bytes: Of a call; bytes at least. [FLOP], [B]
        bound: `matrix units` or `memory`, whichever takes longer at its peak; None without peaks.
        roofline_s: That time; None without peaks. [s]
    """

    kernel: str
    direction: str
    makes: str
    shape: tuple[int, int, int]
    sizes: Sizes
    time_s: float
    flop: float
    bytes: float
    bound: str | None
    roofline_s: float | None

    @property
    def fraction(self) -> float | None:
        """The roofline's time over that measured; None without peaks."""
        return None if self.roofline_s is None else self.roofline_s / self.time_s

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "fraction_of_roofline": self.fraction}


def measured(sizes: Sizes, *, device: str, known: Device | None, repeats: int) -> list[Row]:
    """Return the kernels of one layer, timed.

    Args:
        device: Where, as torch calls it.
        known: Whose peaks make the roofline; None for none.
        repeats: Calls of each.

    Raises:
        CostError: The device has no rate for bf16.
    """
    import torch

    kernels = kernels_of(sizes, device=device, dtype=torch.bfloat16)
    return [
        _row(kernel, sizes, median_s(kernel, device=device, repeats=repeats), known)
        for kernel in kernels
    ]


def _row(kernel: Kernel, sizes: Sizes, time_s: float, known: Device | None) -> Row:
    bytes_ = kernel.bytes(_ELEMENT)
    bound, roofline_s = None, None
    if known is not None:
        compute_s = kernel.flop / known.matrix_peak_flop_per_s(Precision.BF16)
        memory_s = bytes_ / known.memory_bandwidth_bytes_per_s
        bound = "matrix units" if compute_s >= memory_s else "memory"
        roofline_s = max(compute_s, memory_s)
    return Row(
        kernel=kernel.name,
        direction=kernel.direction,
        makes=kernel.makes,
        shape=kernel.shape,
        sizes=sizes,
        time_s=time_s,
        flop=kernel.flop,
        bytes=bytes_,
        bound=bound,
        roofline_s=roofline_s,
    )


def table(rows: Sequence[Row], title: str) -> Table:
    """Return time, rates and fraction of the roofline of every kernel, a section to a layer."""
    found = Table(title=title, title_justify="left")
    for name in ("p", "k", "kernel", "pass", "makes"):
        found.add_column(name)
    for name in ("rows x columns x summed", "time", "TFLOP/s", "GB/s", "bound by", "of roofline"):
        found.add_column(name, justify="right")
    last = None
    for row in rows:
        if last not in (None, row.sizes):
            found.add_section()
        is_first, last = last != row.sizes, row.sizes
        found.add_row(
            str(row.sizes.ranks) if is_first else "",
            str(row.sizes.ghosts) if is_first else "",
            row.kernel,
            row.direction,
            row.makes,
            " x ".join(f"{size:,}" for size in row.shape),
            f"{row.time_s * 1e6:,.1f} us",
            f"{row.flop / row.time_s / 1e12:,.1f}",
            f"{row.bytes / row.time_s / 1e9:,.0f}",
            row.bound or "not known",
            "" if row.fraction is None else f"{row.fraction:.1%}",
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all kernels, print the table and write the result; say so where there is no device."""
    given = _parser().parse_args(arguments)
    try:
        layers = _layers(given)
    except ValueError as error:
        print(f"benchmarks.gpu_phantom: {error}", file=sys.stderr)
        return 2
    if find_spec("torch") is None:
        missing = MissingExtraError(needed_for="kernels", package="torch", extra="torch")
        return refused("gpu_phantom", missing)
    import torch

    is_cuda = torch.device(given.device).type == "cuda"
    if is_cuda and sees_no_device("timed or written"):
        return 0
    try:
        result = _result(_around(given.device), layers, given)
    except WattreeError as error:
        return refused("gpu_phantom", error)
    out = given.out or RESULTS / f"gpu_phantom_{result['known_as'] or 'cpu'}.json"
    write_result(result, out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=WIDTH, help="features of the whole layer")
    parser.add_argument("--ranks", type=_numbers, default=RANKS, help="such as 4,8")
    parser.add_argument("--ghosts", type=_numbers, default=GHOSTS, help="of each rank, as 64,256")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of a micro-batch")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="calls of each kernel")
    parser.add_argument("--device", default="cuda:0", help="as torch calls it")
    parser.add_argument("--known-as", help="the device's name in the catalog")
    parser.add_argument("--out", type=Path, help="file to write, instead of one in results/")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(","))


def _layers(given: argparse.Namespace) -> list[Sizes]:
    """Return the layers to time.

    Raises:
        ValueError: One of them is none.
    """
    found = []
    for ranks in given.ranks:
        if ranks < 2 or given.width % ranks:
            raise ValueError(f"--ranks {ranks}: expected 2 or more, which divide {given.width}")
        for ghosts in given.ghosts:
            if not 0 < ghosts <= given.width // ranks:
                most = given.width // ranks
                raise ValueError(f"--ghosts {ghosts}: expected 1 to {most}, a shard of {ranks}")
            found.append(Sizes(width=given.width, ranks=ranks, ghosts=ghosts, batch=given.batch))
    return found


def _around(device: str) -> dict[str, Any]:
    import torch

    place = torch.device(device)
    if place.type == "cuda":
        import pynvml

        return environment(place.index or 0, pynvml)
    return {
        "device": platform.processor() or platform.machine(),
        "driver": None,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def _result(
    found: dict[str, Any], layers: Sequence[Sizes], given: argparse.Namespace
) -> dict[str, Any]:
    on_processor = given.device.startswith("cpu")
    name = given.known_as or (None if on_processor else found["device"])
    known_as = None if name is None else canonical_name("device", name)
    known = None if known_as is None else load_device(known_as)
    rows = []
    for sizes in layers:
        rows += measured(sizes, device=given.device, known=known, repeats=given.repeats)
    about = f"n = {given.width:,}, batch {given.batch:,}, bf16, median of {given.repeats}"
    Console(width=140).print(table(rows, f"{described(found)}\n{about}"))
    figures = {"precision": Precision.BF16.value, "repeats": given.repeats}
    figures["rows"] = [row.as_json() for row in rows]
    return result_of("wattree-gpu-phantom/1", found, known_as, **figures)


if __name__ == "__main__":
    raise SystemExit(main())
