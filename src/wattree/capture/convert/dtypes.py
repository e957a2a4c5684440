"""How wide elements of recorded tensors are, and of which type a model's activations."""

from __future__ import annotations

from wattree.capture.recording import Recording, TensorSource

FLOATS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
#: Bytes of an element.
WIDTHS = FLOATS | {
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}


def base_dtype(recording: Recording) -> str:
    """Return the type of most floating-point elements: that of activations."""
    count: dict[str, float] = {}
    for tensor in recording.tensors:
        if tensor.dtype in FLOATS and tensor.source is TensorSource.OPERATOR:
            elements = tensor.storage_elements.value(
                micro_batch=recording.batch, sequence=recording.sequence or 1
            )
            count[tensor.dtype] = count.get(tensor.dtype, 0.0) + elements
    return max(count, key=lambda name: count[name]) if count else "float32"
