"""The table of rules, and the loop that applies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from wattree.capture.convert.indexed import INDEXED
from wattree.capture.convert.library import LIBRARY, with_scans_apart
from wattree.capture.convert.losses import FUSED
from wattree.capture.convert.matmuls import MATMULS
from wattree.capture.convert.pointwise import POINTWISE, elementwise, target_name
from wattree.capture.convert.recurrent import RECURRENT, with_layers_apart
from wattree.capture.convert.structured import STRUCTURED, add_unrelated
from wattree.capture.convert.trace import NestTrace, Rule
from wattree.capture.convert.views import VIEWS, unknown_view
from wattree.capture.recording import RecordedOperator, Recording, TensorSource
from wattree.graph import OperatorKind

_RULES: Mapping[str, Rule] = {
    **POINTWISE,
    **STRUCTURED,
    **INDEXED,
    **MATMULS,
    **FUSED,
    **RECURRENT,
    **LIBRARY,
}


def traced(recording: Recording) -> NestTrace:
    """Return the trace of a whole recording."""
    recording = with_scans_apart(with_layers_apart(recording))
    trace = NestTrace(recording)
    for operator in recording.operators:
        trace.region = operator.region
        _apply(trace, operator)
        _note_saved(trace, operator)
    _drop_unread(trace)
    return trace


def _apply(trace: NestTrace, operator: RecordedOperator) -> None:
    name = target_name(operator)
    if operator.is_view:
        rule = VIEWS.get(name, unknown_view)
    elif name in _RULES:
        rule = _RULES[name]
    elif name in VIEWS and operator.inputs:  # as views that change the tensor itself are
        rule = VIEWS[name]
    elif operator.is_pointwise:
        rule = elementwise
    else:
        rule = _unknown
    rule(trace, operator)
    if operator.is_view and not operator.followed:
        for index in operator.outputs:
            trace.detach(index)


def _unknown(trace: NestTrace, operator: RecordedOperator) -> None:
    """Add an operator of which only its bytes are known."""
    name = f"operator {operator.target} "
    if not any(warning.startswith(name) for warning in trace.warnings):  # once, not for each layer
        trace.warn(
            f"{name}in {operator.module or 'the model itself'} is not known: it counts as one that "
            "moves its bytes once, wherever it is called"
        )
    add_unrelated(trace, operator, kind=OperatorKind.OTHER)


def _drop_unread(trace: NestTrace) -> None:
    """Omit operators that only write tensors that kernels know without reading them."""
    readers = Counter(seen.tensor for nest in trace.nests if not nest.dead for seen in nest.reads)
    kept = {trace.view(index).tensor for index in trace.recording.outputs}
    left = list(trace.unread)
    while left:
        tensor = trace.tensors[left.pop()]
        nest = trace.nests[tensor.writer] if tensor.writer is not None else None
        if nest is None or nest.dead or tensor.grad:
            continue
        if any(readers[seen.tensor] or seen.tensor in kept for seen in nest.writes):
            continue
        nest.dead = True
        for seen in nest.reads:
            readers[seen.tensor] -= 1
            left.append(seen.tensor)


def _note_saved(trace: NestTrace, operator: RecordedOperator) -> None:
    """Assign the tensors that autograd saves for an operator to its last nest."""
    for index in operator.saved:
        if index not in trace.views:
            continue
        tensor = trace.tensors[trace.views[index].tensor]
        if tensor.base is not None:
            tensor = trace.tensors[tensor.base]
        if tensor.source is not TensorSource.OPERATOR:
            continue
        for nest in reversed([n for n in trace.nests[-64:] if not n.dead]):
            if any(
                trace.storage_of(s.tensor) == tensor.storage for s in (*nest.reads, *nest.writes)
            ):
                nest.saved.append(tensor.storage)
                break
