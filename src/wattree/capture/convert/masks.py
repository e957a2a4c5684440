"""Masks of attention: which of them hide later positions and nothing else, so that kernels skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.trace import NestTrace
from wattree.capture.recording import RecordedOperator, RecordedTensor
from wattree.graph import OperatorKind

_ORDERED: Final = ("le", "lt", "ge", "gt")
_TRIANGLES: Final = ("tril", "triu")
_SHAPING: Final = (*_ORDERED, *_TRIANGLES)
#: What leaves numbers of positions as they are.
_SAME: Final = ("view", "cast", "copy", "clone", "expand", "repeat", "fill")
#: Added to scores, this hides a position: softmax of it is 0 in every precision.
_HIDES: Final = -1e4


def is_causal(trace: NestTrace, mask: int) -> bool:
    """Return whether a mask is made of a triangle over equal numbers of queries and keys.

    The triangle is `tril` of what is not zero, `triu` from the first diagonal above, or a
    comparison of numbers of positions, shifted alike. Other masks, such as padding, are not
    distinguished: they hide more, never less.
    """

    def shapes(writer: int) -> bool:
        return writer in trace.origins and trace.nests[writer].function in _SHAPING

    # Of what is under these, each shows another part.
    for writer in filter(shapes, _writers(trace, mask, ends=shapes)):
        nest, operator = trace.nests[writer], trace.origins[writer]
        if nest.function in _ORDERED:
            if _parts_positions(trace, nest, operator):
                return True
        elif _is_triangle(trace, nest, operator, adds=_adds(trace, mask)):
            return True
    return False


def is_selected(trace: NestTrace, mask: int) -> bool:
    """Return whether matmuls decide what a mask hides, as those of an indexer of sparse attention.

    A kernel cannot know such a mask without reading it, and the matmuls are work of the model.
    """
    return any(trace.nests[writer].kind is OperatorKind.MATMUL for writer in _writers(trace, mask))


def _writers(
    trace: NestTrace, mask: int, ends: Callable[[int], bool] = lambda _: False
) -> Iterator[int]:
    """Yield the nests that write a mask and what it is made of, none under one that `ends` it."""
    left, seen = [trace.view(mask).tensor], set()
    while left:
        number = left.pop()
        writer = trace.tensors[number].writer
        if number in seen or writer is None:
            continue
        seen.add(number)
        yield writer
        if not ends(writer):
            left += [operand.tensor for operand in trace.nests[writer].reads]


def _adds(trace: NestTrace, mask: int) -> bool:
    """Return whether the mask is a triangle that is added to the scores as it is."""
    tensor = trace.recording.tensors[mask]
    nest = trace.writer_of(mask)
    while nest is not None and nest.function in _SAME and len(nest.reads) == 1:
        writer = trace.tensors[nest.reads[0].tensor].writer
        nest = None if writer is None else trace.nests[writer]
    return tensor.dtype != "bool" and nest is not None and nest.function in _TRIANGLES


def _is_triangle(trace: NestTrace, nest: Nest, operator: RecordedOperator, *, adds: bool) -> bool:
    """Return whether `tril` or `triu` parts earlier and later positions, as a mask must."""
    tensor: RecordedTensor = trace.recording.tensors[operator.outputs[0]]
    is_square = len(tensor.extents) > 1 and tensor.extents[-1] == tensor.extents[-2]
    diagonal = operator.arguments.get("diagonal", 0)
    if not is_square or diagonal != (1 if nest.function == "triu" else 0):
        return False
    value = _filled(trace, nest.reads[0])
    if adds:
        return nest.function == "triu" and value is not None and value <= _HIDES
    return value != 0.0


def _filled(trace: NestTrace, seen: Seen) -> float | None:
    """Return the number that fills a tensor; None if it is unknown."""
    writer = trace.tensors[seen.tensor].writer
    operator = None if writer is None else trace.origins.get(writer)
    if operator is None:
        return None
    name = operator.target.split(".")[1]
    if name.startswith(("zeros", "new_zeros")):
        return 0.0
    if name.startswith(("ones", "new_ones")):
        return 1.0
    value: Any = operator.arguments.get("fill_value", operator.arguments.get("value"))
    return float(value) if isinstance(value, bool | int | float) else None


def _parts_positions(trace: NestTrace, nest: Nest, operator: RecordedOperator) -> bool:
    """Return whether a comparison is one of positions with as many others, not with a length."""
    if len(nest.reads) < 2:
        return False
    here, there = (
        [size for size in trace.size(i) if size != Size(1) and not size.batch]
        for i in operator.inputs[:2]
    )
    if not here or here != there:
        return False
    first, second = (_shift(trace, read) for read in nest.reads)
    return first is not None and first == second


def _shift(trace: NestTrace, seen: Seen) -> float | None:
    """Return the offset added to position numbers; None for any other tensor.

    Numbers of positions are what `arange` makes, an input or a buffer.
    """
    writer = trace.tensors[seen.tensor].writer
    if writer is None:
        return 0.0
    nest, operator = trace.nests[writer], trace.origins.get(writer)
    if operator is None:
        return None
    step = 0.0
    if nest.function in {"add", "sub"} and len(nest.reads) == 1:
        given = operator.arguments.get("other")
        if isinstance(given, bool) or not isinstance(given, int | float):
            return None
        step = given if nest.function == "add" else -given
    elif not (nest.function in _SAME and len(nest.reads) < 2) and nest.function != "index":
        return None  # `index`: a table of positions, picked from by positions
    if not nest.reads and "arange" not in operator.target:
        return None
    shifts = [_shift(trace, read) for read in nest.reads]
    return None if None in shifts else step + sum(shift for shift in shifts if shift is not None)
