"""Turns a recorded recurrent operator into matmuls, gates and states, layer by layer.

Every layer and direction is a product of all steps with the input weights, a product with the
hidden weights that runs step after step, and the gates. That the hidden states of a step come
from those before it is a cycle, which a graph has not: the state that a step starts from is
written as a look at the input products, which it does depend on, one step earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from wattree.capture.convert.atoms import Size
from wattree.capture.convert.pointwise import elementwise
from wattree.capture.convert.structured import add_unrelated
from wattree.capture.convert.trace import Label, NestTrace, Rule
from wattree.capture.recording import RecordedOperator, RecordedTensor, Recording, product_of
from wattree.graph import Extent, OperatorKind

_KINDS: Final = {"wattree.lstm": 4, "wattree.gru": 3, "wattree.rnn": 1}
_INPUT_MATMUL: Final = "wattree.input_product"
_RECURRENT_MATMUL: Final = "wattree.recurrent_product"
_PROJECTION: Final = "wattree.recurrent_projection"
_STATE: Final = "wattree.state"
_GATES: Final = "wattree.gates"
_LAST: Final = "wattree.last_state"
_DROPOUT: Final = "wattree.dropped"


def with_layers_apart(recording: Recording) -> Recording:
    """Return the recording with each recurrent operator as those of its layers and directions."""
    if not any(_kind(operator) for operator in recording.operators):
        return recording
    tensors = list(recording.tensors)
    used = {index for operator in recording.operators for index in operator.inputs}
    used |= set(recording.outputs)
    operators: list[RecordedOperator] = []
    for operator in recording.operators:
        if _kind(operator):
            operators += _Layers(operator, tensors, used).operators()
        else:
            operators.append(operator)
    return replace(recording, operators=tuple(operators), tensors=tuple(tensors))


def _kind(operator: RecordedOperator) -> str:
    """Return the name of a recurrent operator without its overload; empty for others."""
    name = ".".join(operator.target.split(".")[:2])
    return name if name in _KINDS else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Indices of one layer's parameters in one direction."""

    products: tuple[int, int]
    biases: tuple[int, ...]
    projection: int | None


class _Layers:
    """The operators of one recurrent operator, in the making."""

    def __init__(
        self, operator: RecordedOperator, tensors: list[RecordedTensor], used: set[int]
    ) -> None:
        self.whole, self.tensors, self.used = operator, tensors, used
        self.name = _kind(operator)
        get = operator.arguments
        self.layers = int(get["num_layers"])
        self.directions = 2 if get["bidirectional"] else 1
        self.dropped = bool(get["dropout"]) and bool(get["train"])
        self.states = self._at(get["hx"])
        self.batch_sizes = self._at([get["batch_sizes"]])
        self.steps: dict[str, Any] = {
            "steps_place": 1 if get["batch_first"] else 0,
            "packed": self.batch_sizes,
        }
        self.storages = max((tensor.storage for tensor in tensors), default=0)
        self.made: list[RecordedOperator] = []
        self.saved = frozenset(operator.saved)

    def operators(self) -> list[RecordedOperator]:
        """Return them in order."""
        y, last, cell, *_ = self.whole.outputs
        x = self.whole.inputs[0]
        weights = self._weights()
        ends: list[tuple[int, int]] = []
        for layer in range(self.layers):
            found = [
                self._direction(x, next(weights), layer, direction)
                for direction in range(self.directions)
            ]
            ends += found
            is_top = layer == self.layers - 1
            if self.directions == 2:
                lead = self.tensors[x].extents[:-1]
                joined = y if is_top else self._tensor(*lead, self._width(y))
                rank = len(lead)
                kept = (joined,) if self.saved else ()
                halves = tuple(out for out, _ in found)
                self._add("aten.cat.default", halves, (joined,), dim=rank, saved=kept)
            else:
                joined = found[0][0]
            if self.dropped and not is_top:
                left = self._tensor(*self.tensors[joined].extents)
                self._add(_DROPOUT, (joined,), (left,))
                joined = left
            x = joined
        for which, state in enumerate((last, cell)):
            if state in self.used:  # it ends in what all layers did
                self._add(_LAST, tuple(end[which] for end in ends), (state,), **self.steps)
        return self.made

    def _direction(self, x: int, weights: _Weights, layer: int, direction: int) -> tuple[int, int]:
        """Add one layer's operators in one direction; return the sequences of states and cells."""
        y = self.whole.outputs[0]
        to_all, to_hidden = weights.products
        lead = self.tensors[x].extents[:-1]
        wide = self.tensors[to_all].extents[0]
        hidden = self.tensors[to_hidden].extents[1]
        gates = _KINDS[self.name]
        cell = replace(wide, coefficient=wide.coefficient / gates)
        before = self._tensor(*lead, wide)
        state = self._tensor(*lead, hidden)
        again = self._tensor(*lead, wide)
        # Fused cells add both biases; each belongs to its product here.
        first, second = weights.biases[:1], weights.biases[1:]
        keeps: tuple[int, ...] = (x,) if self._is_saved(x, layer) else ()
        steps = self.steps
        self._add(_INPUT_MATMUL, (x, to_all, *first), (before,), saved=keeps, **steps)
        self._add(_STATE, (before,), (state,), gates=gates)
        self._add(_RECURRENT_MATMUL, (state, to_hidden, *second), (again,), **steps)
        is_only = self.directions == 1 and layer == self.layers - 1
        out = y if is_only else self._tensor(*lead, hidden)
        inner = out if weights.projection is None else self._tensor(*lead, cell)
        reserve = self._reserve(lead, cell)
        keeps = tuple(i for i in self.states if i in self.saved) if layer == direction == 0 else ()
        if self.saved and self.directions == 1:
            keeps += (out,) if weights.projection is None else ()
        self._add(
            _GATES,
            (before, again, *self.states),
            (inner, *reserve),
            saved=(*keeps, *(reserve if self.saved else ())),
            **steps,
            gates=gates,
            kind=self.name.partition(".")[2],
        )
        if weights.projection is not None:
            kept = (out,) if self.saved and self.directions == 1 else ()
            self._add(_PROJECTION, (inner, weights.projection), (out,), saved=kept, **steps)
        return out, inner

    def _is_saved(self, x: int, layer: int) -> bool:
        return x in self.saved or (layer > 0 and bool(self.saved))

    def _reserve(self, lead: tuple[Extent, ...], cell: Extent) -> tuple[int, ...]:
        """Return the tensor with one layer's saved tensors, besides its output."""
        whole, rows = self._elements(self.whole.outputs[3]), product_of([*lead, cell])
        # The rest is what layers hand on, a second time where it was dropped from.
        width = product_of([*lead, self._width(self.whole.outputs[0])]).coefficient
        between = (self.layers - 1) * width * (2 if self.dropped else 1)
        left = whole.coefficient - between
        count = round(left / (self.layers * self.directions * rows.coefficient))
        return (self._tensor(*lead, Extent(coefficient=count), cell),) if count > 0 else ()

    def _weights(self) -> Iterator[_Weights]:
        """Yield the parameters of each layer and direction, in order."""
        parameters = self._at(self.whole.arguments["params"])
        apart = len(parameters) // (self.layers * self.directions)
        for start in range(0, len(parameters), apart):
            own = parameters[start : start + apart]
            matrices = [i for i in own if len(self.tensors[i].extents) == 2]
            yield _Weights(
                products=(matrices[0], matrices[1]),
                biases=tuple(i for i in own if i not in matrices),
                projection=matrices[2] if len(matrices) == 3 else None,
            )

    def _at(self, places: object) -> tuple[int, ...]:
        """Return the tensors that an argument holds the places of."""
        found = [p for p in places if isinstance(p, Mapping)] if isinstance(places, list) else []
        return tuple(self.whole.inputs[p["tensor"]] for p in found)

    def _width(self, index: int) -> Extent:
        return self.tensors[index].extents[-1]

    def _elements(self, index: int) -> Extent:
        return product_of(self.tensors[index].extents)

    def _tensor(self, *extents: Extent) -> int:
        """Return the index of a new tensor."""
        self.storages += 1
        like = self.tensors[self.whole.outputs[0]]
        self.tensors.append(
            replace(
                like, extents=extents, storage=self.storages, storage_elements=product_of(extents)
            )
        )
        return len(self.tensors) - 1

    def _add(
        self,
        target: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        saved: tuple[int, ...] = (),
        **arguments: Any,
    ) -> None:
        matrix = inputs[1] if target in (_INPUT_MATMUL, _RECURRENT_MATMUL, _PROJECTION) else None
        flop = Extent(coefficient=0.0)
        if matrix is not None:
            rows = self.tensors[inputs[0]].extents[:-1]
            flop = product_of([Extent(coefficient=2.0), *rows, *self.tensors[matrix].extents])
        self.made.append(
            RecordedOperator(
                target=target,
                module=self.whole.module,
                inputs=inputs,
                outputs=outputs,
                arguments=arguments,
                flop=flop,
                saved=saved,
                region=self.whole.region,
                followed=self.whole.followed,
            )
        )


# ---------------------------------------------------------------- rules


def _matrix(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add a matmul of steps with a matrix; the recurrent ones run one after another."""
    x, weight, *bias = operator.inputs
    lead = _lead(trace, operator)
    in_turn = operator.target != _INPUT_MATMUL
    trace.add(
        operator,
        OperatorKind.MATMUL,
        "recurrent" if in_turn else "linear",
        [(x, [*lead, "in"]), (weight, ["out", "in"]), *((b, ["out"]) for b in bias)],
        [(operator.outputs[0], [*lead, "out"])],
        stems={"in": "in", "out": "out"},
        in_turn="steps" if in_turn and _has_steps(lead) else None,
    )


def _has_steps(lead: list[Label]) -> bool:
    return any(label == "steps" or isinstance(label, tuple) for label in lead)


def _lead(trace: NestTrace, operator: RecordedOperator) -> list[Label]:
    """Return the labels of steps and samples; packed rows are steps of as many samples each."""
    dims = trace.view(operator.inputs[0]).dims
    rows = trace.size(operator.inputs[0])[:-1]
    if len(rows) > 1:
        place = int(operator.arguments["steps_place"])
        if not rows[place].seq:
            trace.stems.append((dims[place], "steps"))
        return ["steps" if i == place else f"d{i}" for i in range(len(rows))]
    steps = [trace.size(index)[0] for index in operator.arguments["packed"]]
    per_step = rows[0].over(steps[0]) if steps else None
    if per_step is None:
        return ["d0"]
    return [(("steps", steps[0]), ("d0", per_step))]


def _plain(trace: NestTrace, index: int, count: int) -> list[Label]:
    return [f"d{i}" for i in range(len(trace.size(index)) - count)]


def _gated(trace: NestTrace, index: int, gates: int) -> Label:
    """Return the label of the dim that all gates of all hidden units read."""
    if gates == 1:
        return "hidden"
    width = trace.size(index)[-1].length
    return (("gate", Size(gates)), ("hidden", Size(width // gates)))


def _state(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the start state of each step: a read of the input matmuls."""
    before, state = operator.inputs[0], operator.outputs[0]
    gates = int(operator.arguments["gates"])
    lead = _plain(trace, before, 1)
    is_projected = trace.size(before)[-1].length != gates * trace.size(state)[-1].length
    trace.add(
        operator,
        OperatorKind.COPY,
        "state",
        [(before, [*lead, _gated(trace, before, gates)])],
        [(state, [*lead, "projected" if is_projected else "hidden"])],
        opaque=frozenset({"gate", *(("hidden",) if is_projected else ())}),
        kernels=0,
        follows=True,
    )


def _samples(lead: list[Label]) -> Label:
    """Return the label of the samples among those of rows."""
    last = lead[-1] if len(lead) == 1 else next(label for label in lead if label != "steps")
    return last[-1][0] if isinstance(last, tuple) else last


def _gates(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the gates, which read both matmuls of a step and the states before the first."""
    before, again, *states = operator.inputs
    y, *reserve = operator.outputs
    gates = int(operator.arguments["gates"])
    lead = _lead(trace, operator)
    products: list[Label] = [*lead, _gated(trace, before, gates)]
    width = trace.size(y)[-1]

    def of_state(index: int) -> list[Label]:
        units = "hidden" if trace.size(index)[-1] == width else "projected"
        return ["layer", _samples(lead), units]

    nest = trace.add(
        operator,
        OperatorKind.ELEMENTWISE,
        f"{operator.arguments['kind']}_gates",
        [(before, products), (again, products), *((i, of_state(i)) for i in states)],
        [(y, [*lead, "hidden"]), *((i, [*lead, "kept", "hidden"]) for i in reserve)],
        opaque=frozenset({"gate", "kept", "layer", "projected"}),
        stems={"kept": "kept", "layer": "layer"},
    )
    for dim, label in zip(nest.reads[0].dims, nest.reads[0].labels, strict=True):
        if label == "gate":  # units are split, never gates
            trace.slots.append(dim)
            trace.stems.append((dim, "gate"))


def _last_state(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add the states after the last step: parts of the layers' outputs."""
    out, lead = operator.outputs[0], _lead(trace, operator)
    trace.add(
        operator,
        OperatorKind.COPY,
        "last_state",
        [(index, [*lead, "units"]) for index in operator.inputs],
        [(out, ["layer", _samples(lead), "units"])],
        opaque=frozenset({"steps", "layer", "units"}),
        kernels=0,
    )


def _nothing(_: NestTrace, __: RecordedOperator) -> None:
    """Add nothing: Python reads one number."""


RECURRENT: Mapping[str, Rule] = {
    "input_product": _matrix,
    "recurrent_product": _matrix,
    "recurrent_projection": _matrix,
    "state": _state,
    "gates": _gates,
    "last_state": _last_state,
    # Between two layers; the mask is derived from the output.
    "dropped": partial(elementwise, function="dropout"),
    # The copy that leaves padding out.
    "_pack_padded_sequence": partial(add_unrelated, kind=OperatorKind.COPY),
    "_local_scalar_dense": _nothing,
}
