"""Recurrent layers as nests: products over all steps, products in turn, and gates.

Each layer and direction has a product of its input with the input weights over all steps at once,
one of the hidden state with the hidden weights step by step, and element-wise gates, as cuDNN runs
them (Appleyard et al., "Optimizing Performance of Recurrent Neural Networks on GPUs", 2016).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattree.capture.convert.atoms import ONE, Dim, Size
from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.pointwise import target_name
from wattree.capture.convert.trace import Rule, Trace
from wattree.capture.recording import RecordedOperator
from wattree.graph import OperatorKind

__all__ = ["RECURRENT"]

_STEMS = {"in": "in", "out": "out", "kept": "kept", "states": "states", "steps": "seq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """Parameters of one layer in one direction, as indices of recorded tensors."""

    inner: int
    hidden: int
    biases: tuple[int, ...]
    projection: int | None


@dataclass(slots=True, kw_only=True)
class _Run:
    """A recurrent operator on its way into the trace.

    Attributes:
        lead: Dims of samples and steps, in the input's order, and their labels.
        steps: Label of the steps; None where packing hides how many there are.
        layer: First nest of the layer at hand.
    """

    trace: Trace
    operator: RecordedOperator
    lead: tuple[Dim, ...]
    labels: tuple[str, ...]
    steps: str | None
    layer: int = 0

    def tensor(self, dims: Sequence[Dim], *, like: int) -> int:
        """Enter a tensor between the parts of a layer; nobody keeps it. Return its number."""
        return self.trace.enter_part(dims, grad=self.trace.tensors[like].grad)

    def add(
        self,
        kind: OperatorKind,
        function: str,
        reads: Sequence[Seen],
        writes: Sequence[Seen],
        *,
        in_turn: bool = False,
    ) -> Nest:
        """Add a nest."""
        nest = Nest(
            kind=kind,
            function=function,
            module=self.operator.module,
            reads=list(reads),
            writes=list(writes),
            stems=_STEMS,
            opaque=frozenset({"gate", "kept", "states"}),
            in_turn=self.steps if in_turn else None,
            region=self.operator.region,
            part_of=self.layer,
        )
        for seen in writes:
            self.trace.tensors[seen.tensor].writer = len(self.trace.nests)
        self.trace.nests.append(nest)
        return nest

    def seen(self, tensor: int, dims: Sequence[Dim], *labels: str) -> Seen:
        """Return a tensor of all steps with further dims."""
        return Seen(tensor=tensor, dims=(*self.lead, *dims), labels=(*self.labels, *labels))


def _recurrent(trace: Trace, operator: RecordedOperator) -> None:
    arguments = operator.arguments
    inputs = operator.inputs
    x = inputs[0]
    directions = 2 if arguments["bidirectional"] else 1
    layers = int(arguments["num_layers"])
    places = [operator.inputs[entry["tensor"]] for entry in arguments["params"]]
    states = [operator.inputs[entry["tensor"]] for entry in arguments["hx"]]
    apart = len(places) // (layers * directions)
    run = _run(trace, operator, x)
    *_, width = trace.view(x).dims
    below = trace.view(x).tensor
    below_dims: tuple[Dim, ...] = (width,)
    below_is_view = True
    for layer in range(layers):
        parts = []
        run.layer = len(trace.nests)
        for direction in range(directions):
            first = (layer * directions + direction) * apart
            weights = _weights(trace, places[first : first + apart])
            moving = run.seen(below, below_dims, "in")
            if below_is_view:
                moving = Seen(
                    tensor=below,
                    dims=trace.view(x).dims,
                    labels=(*_labels_of(run, x), "in"),
                    detached=trace.view(x).detached,
                )
            parts.append(_direction(run, weights, moving))
        is_last = layer == layers - 1
        below, below_dims = _gates(
            run, parts, operator, states if not layer else [], is_last=is_last
        )
        below_is_view = False


def _labels_of(run: _Run, x: int) -> tuple[str, ...]:
    """Return labels of the recorded dims of samples and steps."""
    if len(run.trace.view(x).dims) == len(run.labels) + 1:
        return run.labels
    return (run.labels[0],)


def _run(trace: Trace, operator: RecordedOperator, x: int) -> _Run:
    lead = trace.view(x).dims[:-1]
    if operator.arguments.get("batch_sizes") is None:
        batch_first = bool(operator.arguments["batch_first"]) and len(lead) > 1
        steps, samples = ("d1", "d0") if batch_first else ("d0", "d1")
        labels = (samples, steps) if batch_first else (steps, samples)
        trace.stems.append((lead[1 if batch_first else 0], "seq"))
        return _Run(
            trace=trace, operator=operator, lead=lead, labels=labels[: len(lead)], steps=steps
        )
    packed = operator.inputs[operator.arguments["batch_sizes"]["tensor"]]
    steps_dim = trace.view(packed).dims[0]
    rows = trace.atoms.length(lead[0])
    samples_size = rows.over(trace.atoms.length(steps_dim))
    parts = None
    if samples_size is not None:
        parts = trace.atoms.regroup(lead[0], [trace.atoms.length(steps_dim), samples_size])
    if parts is None:
        trace.warn(
            f"{operator.target} in {operator.module} runs packed sequences of unequal lengths: its "
            "steps count as one product"
        )
        return _Run(trace=trace, operator=operator, lead=lead, labels=("d0",), steps=None)
    trace.stems.append((parts[0], "seq"))
    return _Run(trace=trace, operator=operator, lead=tuple(parts), labels=("d0", "d1"), steps="d0")


def _weights(trace: Trace, places: Sequence[int]) -> _Weights:
    inner, hidden, *rest = places
    flat = tuple(place for place in rest if len(trace.size(place)) == 1)
    projection = next((place for place in rest if len(trace.size(place)) > 1), None)
    return _Weights(inner=inner, hidden=hidden, biases=flat, projection=projection)


def _direction(run: _Run, weights: _Weights, moving: Seen) -> tuple[int, int, _Weights]:
    """Add the two products of a layer in one direction; return what they write."""
    trace = run.trace
    features, inner = trace.view(weights.inner).dims
    trace.atoms.equate(moving.dims[-1], inner)
    own, below = trace.view(weights.hidden).dims
    trace.atoms.equate(features, own)
    fresh = trace.atoms.fresh(trace.atoms.length(features))
    trace.atoms.equate(features, fresh)
    gates = run.tensor((*run.lead, features), like=trace.view(weights.inner).tensor)
    again = run.tensor((*run.lead, features), like=trace.view(weights.hidden).tensor)
    run.add(
        OperatorKind.MATMUL,
        "linear",
        [moving, *_parameters(trace, weights.inner, weights.biases[:1])],
        [run.seen(gates, (features,), "out")],
    )
    trace.nests[-1].saved = [trace.storage_of(moving.tensor)]
    # The state before each step is made of what the step before wrote; of that, the share that
    # is as wide as a state stands for it.
    state = Seen(
        tensor=gates,
        dims=(*run.lead, below),
        labels=(*run.labels, "in"),
    )
    run.add(
        OperatorKind.MATMUL,
        "recurrent_linear",
        [state, *_parameters(trace, weights.hidden, weights.biases[1:])],
        [run.seen(again, (features,), "out")],
        in_turn=True,
    )
    return gates, again, weights


def _parameters(trace: Trace, weight: int, biases: Sequence[int]) -> list[Seen]:
    return [
        trace.seen(weight, ["out", "in"]),
        *(trace.seen(bias, ["out"]) for bias in biases),
    ]


def _gates(
    run: _Run,
    parts: Sequence[tuple[int, int, _Weights]],
    operator: RecordedOperator,
    states: Sequence[int],
    *,
    is_last: bool,
) -> tuple[int, tuple[Dim, ...]]:
    """Add the gates of a layer; return the tensor that it writes and its dims of features."""
    trace = run.trace
    reads: list[Seen] = []
    weights = parts[0][2]
    width = trace.size(weights.hidden)[1] if weights.projection is None else None
    width = width or trace.size(weights.projection or 0)[1]
    hidden: Dim = ()
    for gates, again, _ in parts:
        for number in (gates, again):
            features = trace.tensors[number].dims[-1]
            count = trace.atoms.length(features).over(width) or ONE
            split = trace.atoms.regroup(features, [count, width])
            if split is None:
                continue
            if hidden:
                trace.atoms.equate(hidden, split[1])
            hidden = split[1]
            reads.append(run.seen(number, split, "gate", "hidden"))
    reads += [
        trace.seen(place, ["states", "d_samples", "hidden"][-len(trace.size(place)) :])
        for place in states
    ]
    direction = trace.atoms.fresh(Size(len(parts))) if len(parts) > 1 else ()
    projection = weights.projection
    feature_dims: tuple[Dim, ...] = (direction, hidden) if direction else (hidden,)
    labels = ("direction", "hidden") if direction else ("hidden",)
    final = is_last and projection is None
    like = trace.view(weights.inner).tensor
    if final:
        out = trace.enter_output(operator.outputs[0], grad=trace.tensors[like].grad)
        _relate(run, out, (*run.lead, tuple(a for d in feature_dims for a in d)))
    else:
        out = run.tensor((*run.lead, *feature_dims), like=like)
    nest = run.add(
        OperatorKind.ELEMENTWISE,
        f"{target_name(operator)}_cell",
        reads,
        [run.seen(out, feature_dims, *labels)],
    )
    if projection is not None:
        out, feature_dims = _projected(run, parts, out, operator, is_last=is_last)
    if is_last:
        _further_outputs(run, operator, nest, grad=trace.tensors[like].grad)
    return out, feature_dims


def _projected(
    run: _Run,
    parts: Sequence[tuple[int, int, _Weights]],
    cells: int,
    operator: RecordedOperator,
    *,
    is_last: bool,
) -> tuple[int, tuple[Dim, ...]]:
    """Add the projection of a layer's states; return what it writes."""
    trace = run.trace
    projection = parts[0][2].projection
    assert projection is not None
    features, inner = trace.view(projection).dims
    *_, hidden = trace.tensors[cells].dims
    trace.atoms.equate(inner, hidden)
    like = trace.view(projection).tensor
    direction = trace.tensors[cells].dims[len(run.lead) : -1]
    if is_last:
        out = trace.enter_output(operator.outputs[0], grad=trace.tensors[like].grad)
        whole = tuple(a for d in (*direction, features) for a in d)
        _relate(run, out, (*run.lead, whole))
    else:
        out = run.tensor((*run.lead, *direction, features), like=like)
    labels = ("direction",) * len(direction)
    weights = [
        trace.seen(part[2].projection, ["out", "in"])
        for part in parts
        if part[2].projection is not None
    ]
    run.add(
        OperatorKind.MATMUL,
        "recurrent_linear",
        [run.seen(cells, (*direction, inner), *labels, "in"), *weights],
        [run.seen(out, (*direction, features), *labels, "out")],
        in_turn=True,
    )
    return out, (*direction, features)


def _relate(run: _Run, out: int, dims: Sequence[Dim]) -> None:
    """Let the layer's result, as recorded, walk the dims that its parts have."""
    trace = run.trace
    found = trace.tensors[out].dims
    if len(found) == len(dims):
        for one, other in zip(found, dims, strict=True):
            trace.atoms.equate(one, other)
    else:  # packed: samples and steps in one
        trace.atoms.equate(found[0], tuple(a for d in run.lead for a in d))
        trace.atoms.equate(found[-1], dims[-1])


def _further_outputs(run: _Run, operator: RecordedOperator, nest: Nest, *, grad: bool) -> None:
    """Let the last gates write the last states, and what is kept for backward."""
    trace = run.trace
    for place, index in enumerate(operator.outputs[1:], 1):
        sizes = trace.size(index)
        if any(size.length == 0 for size in sizes):
            continue
        number = trace.enter_output(index, grad=grad and place < len(operator.outputs) - 1)
        labels = ["states", "d_samples", "hidden"][-len(sizes) :]
        if len(sizes) == 1:
            labels = ["kept"]
        tensor = trace.tensors[number]
        tensor.writer = len(trace.nests) - 1
        nest.writes.append(Seen(tensor=number, dims=tensor.dims, labels=tuple(labels)))


RECURRENT: Mapping[str, Rule] = dict.fromkeys(("lstm", "gru", "rnn"), _recurrent)
