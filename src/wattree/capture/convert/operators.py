"""The table of rules, and the walk that applies them."""

from __future__ import annotations

from collections.abc import Mapping

from wattree.capture.convert.library import LIBRARY, with_scans_apart
from wattree.capture.convert.losses import FUSED
from wattree.capture.convert.pointwise import POINTWISE, target_name
from wattree.capture.convert.products import PRODUCTS
from wattree.capture.convert.recurrent import RECURRENT, with_layers_apart
from wattree.capture.convert.structured import STRUCTURED, add_unrelated
from wattree.capture.convert.trace import Rule, Trace
from wattree.capture.convert.views import VIEWS, unknown_view
from wattree.capture.recording import RecordedOperator, Recording
from wattree.graph import OperatorKind

__all__ = ["traced"]

_RULES: Mapping[str, Rule] = {
    **POINTWISE,
    **STRUCTURED,
    **PRODUCTS,
    **FUSED,
    **RECURRENT,
    **LIBRARY,
}


def traced(recording: Recording) -> Trace:
    """Return the trace of a whole recording."""
    recording = with_scans_apart(with_layers_apart(recording))
    trace = Trace(recording)
    for operator in recording.operators:
        _apply(trace, operator)
        trace.note_saved(operator)
    trace.drop_unread()
    return trace


def _apply(trace: Trace, operator: RecordedOperator) -> None:
    name = target_name(operator)
    if operator.is_view:
        rule = VIEWS.get(name, unknown_view)
    elif name in _RULES:
        rule = _RULES[name]
    elif name in VIEWS and operator.inputs:  # as views that change the tensor itself are
        rule = VIEWS[name]
    else:
        rule = _unknown
    rule(trace, operator)
    if operator.is_view and not operator.followed:
        for index in operator.outputs:
            trace.detach(index)


def _unknown(trace: Trace, operator: RecordedOperator) -> None:
    """Add an operator of which only its bytes are known."""
    name = f"operator {operator.target} "
    if not any(warning.startswith(name) for warning in trace.warnings):  # once, not for each layer
        trace.warn(
            f"{name}in {operator.module or 'the model itself'} is not known: it counts as one that "
            "moves its bytes once, wherever it is called"
        )
    add_unrelated(trace, operator, OperatorKind.OTHER)
