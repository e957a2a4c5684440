"""How wide elements of recorded tensors are, and of which type a model's activations."""

from __future__ import annotations

from wattree.capture.recording import Recording

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
    """Return the type of most floating-point elements: that of activations.

    What runs without gradients makes none: an indexer of sparse attention compares all tokens with
    all others in fp32.
    """
    count: dict[str, float] = {}
    followed = [o for o in recording.operators if o.followed] or recording.operators
    made = dict.fromkeys(index for operator in followed for index in operator.outputs)
    for tensor in (recording.tensors[index] for index in made):
        if tensor.dtype in FLOATS:
            elements = tensor.storage_elements.value(
                micro_batch=recording.batch, sequence=recording.sequence or 1
            )
            count[tensor.dtype] = count.get(tensor.dtype, 0.0) + elements
    return max(count, key=lambda name: count[name]) if count else "float32"
