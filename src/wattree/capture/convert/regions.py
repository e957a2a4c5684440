"""Regions that a model itself recomputes (`torch.utils.checkpoint`): their saved tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wattree.capture.convert.nests import Nest
from wattree.capture.convert.trace import NestTrace
from wattree.graph import OperatorKind

#: Whose gradient needs the result, not what it was made of.
_BY_RESULT: Final = frozenset(
    {"relu", "sigmoid", "tanh", "softmax", "log_softmax", "safe_softmax", "exp", "sqrt", "rsqrt"}
)
#: Whose gradient needs nothing.
_BY_NOTHING: Final = frozenset(
    {"add", "sub", "neg", "sum", "mean", "dropout", "cat", "pad", "copy", "cast", "view", "slice"}
)
_KINDS: Final = frozenset(
    {
        OperatorKind.MATMUL,
        OperatorKind.CONVOLUTION,
        OperatorKind.ATTENTION,
        OperatorKind.NORM,
        OperatorKind.BATCH_NORM,
        OperatorKind.SOFTMAX,
        OperatorKind.ELEMENTWISE,
        OperatorKind.POOL,
        OperatorKind.CROSS_ENTROPY,
    }
)


def save_inside_regions(trace: NestTrace, nests: Sequence[Nest]) -> None:
    """Set the tensors that operators in checkpointed regions save once they run again.

    Autograd keeps nothing for them in forward, so the recording does not tell.
    """
    for nest in nests:
        if nest.region is not None:
            nest.saved = _saved(trace, nest)


def _saved(trace: NestTrace, nest: Nest) -> list[int]:
    if nest.kind not in _KINDS or nest.function in _BY_NOTHING:
        return []
    seen = list(nest.reads)
    if nest.kind is OperatorKind.ATTENTION:
        seen += nest.writes
    elif nest.function in _BY_RESULT:
        seen = list(nest.writes[:1])
    elif nest.kind in {OperatorKind.NORM, OperatorKind.BATCH_NORM, OperatorKind.POOL}:
        seen = [*nest.reads[:1], *nest.writes[1:]]
    return [trace.storage_of(s.tensor) for s in seen if s.tensor in _made(trace, nest)]


def _made(trace: NestTrace, nest: Nest) -> set[int]:
    """Return the operands that operators wrote: the candidates for saving."""
    return {
        seen.tensor
        for seen in (*nest.reads, *nest.writes)
        if trace.tensors[seen.tensor].writer is not None
    }
