"""Element-wise operators, reductions, copies and fills as nests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from wattree.capture.convert.atoms import ONE
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator
from wattree.files import read_yaml
from wattree.graph import OperatorKind

#: Table of rules → rule → the operators that it is for.
_OPERATORS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = read_yaml(
    Path(__file__).with_name("operators.yaml")
)


def rules_of(table: str, **rules: Rule) -> dict[str, Rule]:
    """Return operator → rule, from a table of `operators.yaml` and the rules that it names."""
    words = _OPERATORS[table].items()
    return {operator: rules[word] for word, operators in words for operator in operators}


def at(place: int, rank: int) -> int:
    """Return a dim counted from the front."""
    return place + rank if place < 0 else place


def aligned(trace: NestTrace, index: int, out_rank: int) -> list[Label]:
    """Return labels of a tensor that broadcasts: dims are counted from the last."""
    sizes = trace.size(index)
    return [None if s == ONE else f"d{out_rank - len(sizes) + i}" for i, s in enumerate(sizes)]


def elementwise(
    trace: NestTrace,
    operator: RecordedOperator,
    *,
    kind: OperatorKind = OperatorKind.ELEMENTWISE,
    function: str = "",
    opaque: Iterable[int] = (),
    inputs: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    **more: Any,
) -> None:
    """Add an operator whose operands broadcast to its results, element by element.

    Args:
        opaque: Dims that are not, counted from the front or the back.
        inputs, outputs: Those that count; None for all.
        more: Further fields of `Nest`.
    """
    inputs = operator.inputs if inputs is None else inputs
    outputs = operator.outputs if outputs is None else outputs
    rank = max((len(trace.size(index)) for index in (*inputs, *outputs)), default=0)
    trace.add(
        operator,
        kind,
        function or target_name(operator),
        [(index, aligned(trace, index, rank)) for index in inputs],
        [(index, aligned(trace, index, rank)) for index in outputs],
        opaque=frozenset(f"d{at(place, rank)}" for place in opaque),
        **more,
    )


def target_name(operator: RecordedOperator) -> str:
    """Return the plain name of an operator: `aten.add_.Tensor` is `add`."""
    name = operator.target.split(".")[1]
    return name.removesuffix("_") if operator.in_place and not name.startswith("_") else name


def _copy(trace: NestTrace, operator: RecordedOperator) -> None:
    if operator.in_place and len(operator.inputs) > 1:  # what was there is not read
        inputs, outputs = operator.inputs[1:], operator.outputs[:1]
        elementwise(
            trace, operator, kind=OperatorKind.COPY, function="copy", inputs=inputs, outputs=outputs
        )
        return
    cast = (
        trace.recording.tensors[operator.inputs[0]].dtype
        != trace.recording.tensors[operator.outputs[0]].dtype
    )
    elementwise(trace, operator, kind=OperatorKind.COPY, function="cast" if cast else "copy")


_fill = partial(elementwise, kind=OperatorKind.COPY, function="fill", inputs=())


def _room(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add room without values, unless all of it is written at once: no kernel runs."""
    _fill(trace, operator, function="room", kernels=0)
    trace.unread += [trace.view(index).tensor for index in operator.outputs]


def reduced_places(operator: RecordedOperator, rank: int) -> list[int]:
    """Return the dims that a reduction sums over."""
    dims = operator.arguments.get("dim")
    if dims is None or dims == []:
        return list(range(rank))
    return [at(int(d), rank) for d in (dims if isinstance(dims, list) else [dims])]


def _reduction(trace: NestTrace, operator: RecordedOperator) -> None:
    source = operator.inputs[0]
    rank = len(trace.size(source))
    if len(operator.inputs) > 1:  # the larger of two: `max.other`
        elementwise(trace, operator)
        return
    gone = reduced_places(operator, rank)
    labels: list[Label] = [f"d{i}" for i in range(rank)]

    def left(out: int) -> list[Label]:
        if len(trace.size(out)) == rank:
            return [None if i in gone else label for i, label in enumerate(labels)]
        kept = [label for i, label in enumerate(labels) if i not in gone]
        return kept if len(kept) == len(trace.size(out)) else [None] * len(trace.size(out))

    trace.add(
        operator,
        OperatorKind.REDUCTION,
        target_name(operator),
        [(source, labels)],
        [(out, left(out)) for out in operator.outputs],
    )


def _loss(trace: NestTrace, operator: RecordedOperator) -> None:
    rank = max(len(trace.size(index)) for index in operator.inputs)
    out = operator.outputs[0]
    if len(trace.size(out)) == rank:
        elementwise(trace, operator, outputs=[out])
        return
    trace.add(
        operator,
        OperatorKind.REDUCTION,
        target_name(operator),
        [(index, aligned(trace, index, rank)) for index in operator.inputs],
        [(out, [None] * len(trace.size(out)))],
    )


def _random(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add random values; they may turn out to be the mask of a dropout."""
    elementwise(trace, operator)
    trace.noise.add(trace.storage_at(operator.outputs[0]))


def _scaled(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a multiplication, which is a dropout if one factor is a random mask."""
    noise = [i for i in operator.inputs if trace.storage_at(i) in trace.noise]
    real = [i for i in operator.inputs if i not in noise]
    if len(noise) != 1 or len(real) != 1 or trace.size(noise[0]) != trace.size(real[0]):
        elementwise(trace, operator)
        return
    storage = trace.storage_at(noise[0])
    for nest in trace.nests:
        if not nest.dead and any(trace.storage_of(s.tensor) == storage for s in nest.writes):
            nest.dead = True
    _dropout(trace, operator, real)


def _dropout(
    trace: NestTrace, operator: RecordedOperator, inputs: Sequence[int] | None = None
) -> None:
    inputs, outputs = inputs or operator.inputs[:1], operator.outputs[:1]
    elementwise(trace, operator, function="dropout", inputs=inputs, outputs=outputs, mask_bytes=1.0)


def _scan(trace: NestTrace, operator: RecordedOperator) -> None:
    elementwise(trace, operator, opaque=(int(operator.arguments.get("dim", 0)),))


POINTWISE: Mapping[str, Rule] = {
    **rules_of(
        "pointwise",
        elementwise=elementwise,
        copy=_copy,
        fill=_fill,
        room=_room,
        reduction=_reduction,
        loss=_loss,
        scan=_scan,
        random=_random,
        scaled=_scaled,
        dropout=_dropout,
    ),
    "_weight_norm_interface": partial(elementwise, function="weight_norm"),
}
