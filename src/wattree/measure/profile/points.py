"""The points that `wattree profile` measures: small programs, timed on every rank at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

MIB = 1 << 20


class PointFamily(StrEnum):
    """Families of points; each has its own fit."""

    PRODUCT = "product"
    STREAM = "stream"
    UPDATE = "update"
    STEP = "step"
    COLLATE = "collate"
    COPY = "copy"
    COLLECTIVE = "collective"
    OVERLAP = "overlap"
    SLICES = "slices"


class Pass(StrEnum):
    """The three matmuls of a linear layer."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One measurement.

    Attributes:
        name: Which product, function, collective or phase.
        rows, inner, columns: Of a product: batch, input width and output width of its layer;
            of a step `rows` samples and `inner` layers; of a batch `rows` samples, each of `inner`
            values.
        size_bytes: Of one operand of a stream, or of a collective as nccl-tests counts it. [B]
    """

    kind: PointFamily
    name: str
    precision: str = "fp32"
    rows: int = 0
    inner: int = 0
    columns: int = 0
    size_bytes: int = 0

    @property
    def key(self) -> str:
        """Key of the point in the journal."""
        if self.size_bytes:
            shape = f"{self.size_bytes}B"
        else:
            shape = "x".join(str(n) for n in (self.rows, self.inner, self.columns) if n)
        return f"{self.kind}/{self.name}/{self.precision}/{shape}"

    @property
    def matmul(self) -> tuple[int, int, int]:
        """Rows, columns and contraction of the matmul: `m`, `n`, `k`."""
        if self.name == Pass.INPUT_GRADIENT:
            return self.rows, self.inner, self.columns
        if self.name == Pass.WEIGHT_GRADIENT:
            return self.columns, self.inner, self.rows
        return self.rows, self.columns, self.inner


def element_bytes(precision: str) -> int:
    """Return the width of an operand. [B]"""
    return {"fp64": 8, "fp32": 4, "tf32": 4}.get(precision, 2)


#: Layers by batch, input and output width: square and skinny ones, weights of 64 KiB to 64 MiB,
#: one of a width that is no multiple of anything, some whose results' rows share sets of a cache.
_LAYERS = (
    (64, 2048, 2048),
    (64, 8192, 2048),
    (64, 1024, 8192),
    (64, 12288, 512),
    (64, 2048, 64),
    (64, 192, 2048),
    (64, 4344, 1086),
    (64, 1024, 1024),
    (64, 512, 512),
    (16, 2048, 2048),
    (256, 1024, 1024),
    (256, 2048, 512),
    (1024, 512, 512),
)
#: At other precisions, to know their rates.
_FEW_LAYERS = ((64, 2048, 2048), (256, 1024, 1024), (256, 2048, 512), (1024, 512, 512))
#: An accelerator needs more rows to be busy.
_LARGE_LAYERS = (
    (512, 4096, 4096),
    (2048, 4096, 4096),
    (4096, 8192, 8192),
    (4096, 4096, 1024),
    (4096, 1024, 4096),
    (2048, 12288, 4096),
    (8192, 1024, 1024),
)
_STREAM_BYTES = (MIB // 2, 2 * MIB, 16 * MIB, 24 * MIB, 64 * MIB)
_UPDATED_BYTES = (16 * MIB, 64 * MIB)
_OPTIMIZERS = ("sgd", "momentum", "adamw")
_STREAMS = ("relu", "relu_backward", "add", "add_in_place")
_SHARED_SIZES = (16 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB)
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
#: Gathers that overlap matmuls: on CPUs, where they take processors, of several sizes.
_OVERLAPPED_BYTES, _ALL_OVERLAPPED_BYTES = (8 * MIB,), (MIB // 4, 2 * MIB, 8 * MIB)
#: Layers whose weights are also multiplied slice by slice.
_SLICED_LAYERS = ((64, 4096, 1024), (64, 3000, 1000))
_DEPTHS = (2, 4, 8, 16)


def points_for(
    *, precisions: Iterable[str], ranks: int, accelerator: bool
) -> tuple[ProfilePoint, ...]:
    """Return the points of a machine, in the measuring order of a round.

    Args:
        precisions: Of products; the first gets all shapes.
        ranks: Processes that work at once; collectives need two.
    """
    return tuple(_points(tuple(precisions), ranks=ranks, accelerator=accelerator))


def _points(
    precisions: tuple[str, ...], *, ranks: int, accelerator: bool
) -> Iterator[ProfilePoint]:
    yield from _products(precisions, accelerator=accelerator)
    for name, size in product(_STREAMS, _STREAM_BYTES):
        yield ProfilePoint(kind=PointFamily.STREAM, name=name, size_bytes=size)
    for name, size in product(_OPTIMIZERS, _UPDATED_BYTES):
        yield ProfilePoint(kind=PointFamily.UPDATE, name=name, size_bytes=size)
    for depth in _DEPTHS:
        yield ProfilePoint(kind=PointFamily.STEP, name="step", rows=4, inner=depth)
    for rows, inner in ((16, 256), (64, 256), (64, 4096), (256, 4096)):
        yield ProfilePoint(kind=PointFamily.COLLATE, name="batch", rows=rows, inner=inner)
    if accelerator:
        for name, size in product(("pinned", "pageable"), (MIB, 64 * MIB)):
            yield ProfilePoint(kind=PointFamily.COPY, name=name, size_bytes=size)
    if ranks > 1:
        yield from _together(accelerator=accelerator)


def _together(*, accelerator: bool) -> Iterator[ProfilePoint]:
    """Yield the points that need several ranks."""
    for name, size in product(_COLLECTIVES, _SHARED_SIZES):
        yield ProfilePoint(kind=PointFamily.COLLECTIVE, name=name, size_bytes=size)
    sizes = _OVERLAPPED_BYTES if accelerator else _ALL_OVERLAPPED_BYTES
    for size, name in product(sizes, ("product", "exchange", "both")):
        yield ProfilePoint(kind=PointFamily.OVERLAP, name=name, size_bytes=size)
    if not accelerator:
        yield from _slices()


def _slices() -> Iterator[ProfilePoint]:
    for (rows, inner, columns), which, how in product(
        _SLICED_LAYERS, (Pass.FORWARD, Pass.INPUT_GRADIENT), ("whole", "sliced")
    ):
        name = f"{which}.{how}"
        yield ProfilePoint(
            kind=PointFamily.SLICES, name=name, rows=rows, inner=inner, columns=columns
        )


def _products(precisions: tuple[str, ...], *, accelerator: bool) -> Iterator[ProfilePoint]:
    for place, precision in enumerate(precisions):
        layers = _LARGE_LAYERS if accelerator else (_FEW_LAYERS if place else _LAYERS)
        for (rows, inner, columns), which in product(layers, Pass):
            yield ProfilePoint(
                kind=PointFamily.PRODUCT,
                name=which,
                precision=precision,
                rows=rows,
                inner=inner,
                columns=columns,
            )
