"""Finds where gradients flow: not to unused tensors, and not past a detached tensor.

A recording says what autograd follows in forward. Backward visits less: what does not lead to the
loss, or to a result, has no gradient though autograd was ready for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wattree.capture.convert.nests import Nest, Seen
from wattree.capture.convert.trace import NestTrace
from wattree.capture.recording import TensorSource
from wattree.graph import OperatorKind


def leave_out_unreached(trace: NestTrace) -> None:
    """Take the gradient from all tensors that backward does not reach, parameters included."""
    recording = trace.recording
    ends = (recording.loss,) if recording.loss is not None else recording.outputs
    reached = {trace.view(index).tensor for index in ends if trace.follows(index)}
    for nest in reversed([nest for nest in trace.nests if not nest.dead]):
        writes = {seen.tensor for seen in nest.writes}
        if writes & reached:
            reached |= {
                s.tensor for s in nest.reads if trace.tensors[s.tensor].grad and not s.detached
            }
            # Statistics and the like come with what has a gradient.
            reached |= {tensor for tensor in writes if trace.tensors[tensor].grad}
    for tensor in trace.tensors:
        tensor.grad = tensor.grad and tensor.number in reached


def with_detached_apart(trace: NestTrace, nests: Sequence[Nest]) -> list[Nest]:
    """Return nests in which detached reads are separate tensors without a gradient.

    Only where a gradient would go there otherwise: to what has one, from what has one.
    """
    found: list[Nest] = []
    for nest in nests:
        if not any(trace.tensors[seen.tensor].grad for seen in nest.writes):
            found.append(nest)
            continue
        reads = []
        for seen in nest.reads:
            if not seen.detached or not _has_gradient(trace, seen):
                reads.append(seen)
                continue
            found.append(_look(trace, nest, seen))
            reads.append(replace(seen, tensor=found[-1].writes[0].tensor))
        found.append(replace(nest, reads=reads))
    return found


def _has_gradient(trace: NestTrace, seen: Seen) -> bool:
    tensor = trace.tensors[seen.tensor]
    return tensor.grad and tensor.source is TensorSource.OPERATOR


def _look(trace: NestTrace, reader: Nest, seen: Seen) -> Nest:
    """Return a nest that looks at a tensor and hands no gradient on. It costs nothing."""
    apart = trace.look_at(seen.tensor)
    labels = tuple(f"d{place}" for place in range(len(apart.dims)))
    return Nest(
        kind=OperatorKind.COPY,
        function="detach",
        module=reader.module,
        reads=[Seen(tensor=seen.tensor, dims=apart.dims, labels=labels, detached=True)],
        writes=[Seen(tensor=apart.number, dims=apart.dims, labels=labels)],
        kernels=0,
        region=reader.region,
    )
