"""Pass 1c: windows that slide over a dim that is split: the rows of neighbours that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattree.graph import Operator, window_dims
from wattree.lowering.passes.propagate import Split
from wattree.lowering.spread import WindowPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Halo:
    """Rows at the edges of a part of an operator's input that its neighbours hold.

    Attributes:
        dim: Over which the window slides.
        axes: Mesh axes that split it.
        share: Of the whole input: rows of both edges over all rows.
        edge_rows: Input rows that one neighbour has to have, at most.
        stride: Input rows from one output row to the next.
    """

    dim: str
    axes: tuple[str, ...]
    share: float
    edge_rows: float
    stride: float


def halos_of(operator: Operator, split: Split) -> tuple[Halo, ...]:
    """Return the rows that an operator needs of its neighbors, by dim; empty if no window crosses.

    A window of `k` taps, `d` apart, spans `(k - 1) d + 1` rows; parts begin at multiples of the
    stride `s`, so `(k - 1) d + 1 - s` rows of each window lie beyond the part at its edges. A
    transposed window spans as many output rows, which stem from `s` times fewer input rows.
    """
    return tuple(halo for halo in _windows(operator, split) if halo.share > 0)


def _windows(operator: Operator, split: Split) -> list[Halo]:
    window = operator.window
    if window is None:
        return []
    found = []
    for place, dim in enumerate(window_dims(operator)):
        axes = split.get(dim, ())
        if not axes:
            continue
        span = (window.kernel[place] - 1) * window.dilation[place] + 1
        stride = window.stride[place]
        beyond = max(0.0, float(span - stride))
        if window.transposed:
            beyond, stride = beyond / stride, 1
        rows = operator.dim(dim).extent.coefficient * stride
        edge = max(0.0, -(-beyond // 2))
        found.append(
            Halo(dim=dim, axes=axes, share=beyond / rows, edge_rows=edge, stride=float(stride))
        )
    return found


def window_parts(
    operators: Sequence[Operator], splits: Sequence[Split], where: str
) -> tuple[WindowPart, ...]:
    """Return every window whose dim is split, for `window_part_misfits`."""
    return tuple(
        WindowPart(
            path=f"{where}.{operator.path}",
            dim=halo.dim,
            axes=halo.axes,
            outputs=operator.dim(halo.dim).extent.coefficient,
            stride=halo.stride,
            edge_rows=halo.edge_rows,
        )
        for operator, split in zip(operators, splits, strict=True)
        for halo in _windows(operator, split)
    )


def window_part_misfits(parts: Sequence[WindowPart], degrees: Mapping[str, int]) -> dict[str, str]:
    """Return path → why its window cannot be split: odd parts, or windows beyond the neighbour.

    Args:
        degrees: Axis → degree.
    """
    found: dict[str, str] = {}
    for part in parts:
        degree = 1
        for axis in part.axes:
            degree *= degrees.get(axis, 1)
        if degree == 1:
            continue
        over = ", ".join(part.axes)
        rows = part.outputs / degree
        if rows != int(rows):
            found[part.path] = (
                f"{part.outputs:g} output rows of '{part.dim}' do not divide over {over} "
                f"({degree}); split this layer by another dim, or not: {{{part.dim}: []}}"
            )
        elif part.edge_rows > rows * part.stride:
            found[part.path] = (
                f"its window reaches {part.edge_rows:g} rows beyond its part, but the neighbour "
                f"over {over} ({degree}) has {rows * part.stride:g}; use a smaller degree, or do "
                f"not split this layer: {{{part.dim}: []}}"
            )
    return found
