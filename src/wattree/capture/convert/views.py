"""Views: derives further mappings of a storage from the first. Views are not in the graph.

Only what picks out a part of a tensor stays, as an operator that launches nothing: its result has
other positions than the tensor it is part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from wattree.capture.convert.atoms import ONE, Dim, Size
from wattree.capture.convert.pointwise import at, rules_of
from wattree.capture.convert.trace import NestTrace, Rule
from wattree.capture.recording import RecordedOperator


def _dims(trace: NestTrace, operator: RecordedOperator) -> tuple[Dim, ...]:
    return trace.view(operator.inputs[0]).dims


def unknown_view(trace: NestTrace, operator: RecordedOperator) -> None:
    """Enter a view and follow only the dims that keep their length."""
    source = operator.inputs[0]
    dims = _dims(trace, operator)
    for part in operator.outputs:
        left = list(range(len(dims)))
        found: list[Dim] = []
        labels: list[str] = []
        for place, size in enumerate(trace.size(part)):
            same = next((i for i in left if trace.atoms.length(dims[i]) == size), None)
            batch = next((i for i in left if size.batch and _starts(trace, dims[i], size)), None)
            keeps = same if same is not None and size != ONE else batch
            if keeps is None:
                found.append(trace.atoms.fresh(size))
                labels.append(f"part{place}")
                continue
            left.remove(keeps)
            found.append(dims[keeps] if keeps == same else trace.atoms.fresh(size))
            labels.append(f"d{keeps}")
        trace.add_part(
            operator,
            source,
            part,
            labels_in=[f"d{i}" for i in range(len(dims))],
            labels_out=labels,
            dims=found,
        )


def _starts(trace: NestTrace, dim: Dim, size: Size) -> bool:
    """Whether a dim grows with the batch as one of the given length does."""
    return trace.atoms.length(dim).batch == size.batch


def _reshape(trace: NestTrace, operator: RecordedOperator) -> None:
    out = operator.outputs[0]
    flat = [atom for dim in _dims(trace, operator) for atom in dim]
    dims = trace.atoms.regroup(flat, trace.size(out))
    if dims is None:
        unknown_view(trace, operator)
    else:
        trace.set_view(out, operator.inputs[0], dims)


def _same(trace: NestTrace, operator: RecordedOperator) -> None:
    trace.set_view(operator.outputs[0], operator.inputs[0], _dims(trace, operator))


def _detach(trace: NestTrace, operator: RecordedOperator) -> None:
    trace.set_view(operator.outputs[0], operator.inputs[0], _dims(trace, operator), detached=True)


def _transpose(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = list(_dims(trace, operator))
    arguments = operator.arguments
    if len(dims) > 1:
        one = at(int(arguments.get("dim0", 0)), len(dims))
        other = at(int(arguments.get("dim1", 1)), len(dims))
        dims[one], dims[other] = dims[other], dims[one]
    trace.set_view(operator.outputs[0], operator.inputs[0], dims)


def _permute(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    order = [at(int(place), len(dims)) for place in operator.arguments["dims"]]
    trace.set_view(operator.outputs[0], operator.inputs[0], [dims[place] for place in order])


def _expand(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    sizes = trace.size(operator.outputs[0])
    padded = ((),) * (len(sizes) - len(dims)) + dims
    trace.set_view(
        operator.outputs[0],
        operator.inputs[0],
        [
            dim if trace.atoms.length(dim) == size else trace.atoms.fresh(size)
            for dim, size in zip(padded, sizes, strict=True)
        ],
    )


def _select(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    place = at(int(operator.arguments.get("dim", 0)), len(dims))
    _pick(trace, operator, operator.outputs[0], place, dims[place], drop=True)


def _slice(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    place = at(int(operator.arguments.get("dim") or 0), len(dims))
    out = operator.outputs[0]
    size, whole = trace.size(out)[place], trace.atoms.length(dims[place])
    if size == whole:
        _same(trace, operator)
        return
    start = operator.arguments.get("start") or 0
    step = operator.arguments.get("step") or 1
    _pick_range(trace, operator, out, place, start=int(start) if step == 1 else None)


def _pick_range(
    trace: NestTrace, operator: RecordedOperator, out: int, place: int, *, start: int | None
) -> None:
    """Enter a range of a dim. Equal parts are distinguished by an atom of their own."""
    dims = _dims(trace, operator)
    size, whole = trace.size(out)[place], trace.atoms.length(dims[place])
    if start is not None and start < 0:
        start += whole.length
    parts = whole.over(size)
    if (
        parts is not None
        and parts.batch == parts.seq == 0
        and start is not None
        and not start % size.length
    ):
        cut = trace.atoms.regroup(dims[place], [parts, size])
        if cut is not None:
            trace.slots.append(cut[0])
            _pick(trace, operator, out, place, cut[1], drop=False)
            return
    _pick(trace, operator, out, place, None, drop=False)


def _pick(
    trace: NestTrace,
    operator: RecordedOperator,
    out: int,
    place: int,
    kept: Dim | None,
    *,
    drop: bool,
) -> None:
    """Enter a part of a tensor: one index of a dim, an equal part of it, or any range."""
    dims = list(_dims(trace, operator))
    labels_in: list[str | None] = [f"d{i}" for i in range(len(dims))]
    if drop:
        left = [i for i in range(len(dims)) if i != place]
        trace.add_part(
            operator,
            operator.inputs[0],
            out,
            labels_in=labels_in,
            labels_out=[labels_in[i] for i in left],
            dims=[dims[i] for i in left],
            function="select",
        )
        return
    labels_out = list(labels_in)
    result = list(dims)
    result[place] = kept if kept is not None else trace.atoms.fresh(trace.size(out)[place])
    trace.add_part(
        operator,
        operator.inputs[0],
        out,
        labels_in=labels_in,
        labels_out=labels_out,
        dims=result,
        function="slice",
    )


def _split(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    place = at(int(operator.arguments.get("dim") or 0), len(dims))
    lengths = [trace.size(out)[place] for out in operator.outputs]
    common = gcd(*(size.length for size in lengths))
    start = 0
    for out, size in zip(operator.outputs, lengths, strict=True):
        if len(operator.outputs) == 1:
            _same(trace, operator)
            return
        # A part as long as several others is no single place among equal ones.
        even = size.length == common and trace.atoms.length(dims[place]).over(size) is not None
        _pick_range(trace, operator, out, place, start=start if even else None)
        start += size.length


def _unbind(trace: NestTrace, operator: RecordedOperator) -> None:
    dims = _dims(trace, operator)
    place = at(int(operator.arguments.get("dim") or 0), len(dims))
    for out in operator.outputs:
        _pick(trace, operator, out, place, dims[place], drop=True)


def _strided(trace: NestTrace, operator: RecordedOperator) -> None:
    if trace.size(operator.outputs[0]) == trace.size(operator.inputs[0]):  # other strides alone
        _same(trace, operator)
    else:
        unknown_view(trace, operator)


VIEWS: Mapping[str, Rule] = rules_of(
    "views",
    reshape=_reshape,
    same=_same,
    detach=_detach,
    strided=_strided,
    transpose=_transpose,
    permute=_permute,
    expand=_expand,
    select=_select,
    slice=_slice,
    split=_split,
    unbind=_unbind,
)
