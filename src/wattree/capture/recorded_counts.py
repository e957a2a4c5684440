"""Work and size of a recording by plain summation, as `counts.py` has them of a graph."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Final

from wattree.capture.recording import RecordedTensor, Recording, TensorSource
from wattree.graph import Extent

__all__ = ["DTYPE_BYTES", "RecordedCounts", "recorded_counts"]

#: Bytes of one value, by PyTorch's name of its type.
DTYPE_BYTES: Final = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "complex32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCounts:
    """What one forward and backward of a recorded module takes.

    Attributes:
        parameters: Tied ones once; a complex value counts as one.
        trainable_parameters: Of these, those that need a gradient.
        forward_flop: Of matrix products and convolutions, attention dense. [FLOP]
        backward_flop: The same of backward, with what is computed again. [FLOP]
        saved_bytes: Storages that autograd keeps, each once and whole, without those of
            parameters, buffers and inputs. [B]
    """

    parameters: int
    trainable_parameters: int
    forward_flop: float
    backward_flop: float
    saved_bytes: float


def recorded_counts(recording: Recording, *, batch: int, sequence: int | None) -> RecordedCounts:
    """Return what `recording` takes with `batch` samples of `sequence` tokens."""

    def value(extent: Extent) -> float:
        return extent.value(micro_batch=batch, sequence=sequence or 1)

    parameters = [t for t in recording.tensors if t.source is TensorSource.PARAMETER]
    backward = value(recording.recomputed_flop) + sum(
        value(operator.input_gradient_flop) + value(operator.weight_gradient_flop)
        for operator in recording.operators
    )
    kept = _kept_storages(recording)
    return RecordedCounts(
        parameters=sum(_elements(t) for t in parameters),
        trainable_parameters=sum(_elements(t) for t in parameters if t.requires_grad),
        forward_flop=sum(value(operator.flop) for operator in recording.operators),
        backward_flop=backward,
        saved_bytes=sum(value(t.storage_elements) * DTYPE_BYTES[t.dtype] for t in kept),
    )


def _elements(parameter: RecordedTensor) -> int:
    return round(prod(extent.coefficient for extent in parameter.extents))


def _kept_storages(recording: Recording) -> list[RecordedTensor]:
    """Return one tensor of each storage that is kept and that the forward pass has made."""
    sources = defaultdict(set)
    for tensor in recording.tensors:
        sources[tensor.storage].add(tensor.source)
    kept: dict[int, RecordedTensor] = {}
    for operator in recording.operators:
        for index in operator.saved:
            tensor = recording.tensors[index]
            if sources[tensor.storage] == {TensorSource.OPERATOR}:
                kept[tensor.storage] = tensor
    return list(kept.values())
