"""The result of running a module once, as data, without torch.

A recording is in program order and says what eager PyTorch did: operators of the forward pass as
they were dispatched, the tensors between them with their storages, what autograd kept for each,
and the FLOP that each one's backward took. Sizes are symbolic in batch and sequence, found by
running at several of both. `capture.convert` makes a model graph of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from wattree.graph import Extent
from wattree.units import counted

#: Warnings begin so where a module states what is a trait of the software, or the precision: they
#: are idle where the job states the same.
TRAIT_UNSET: Final = "traits.{}: is not set"
OWN_PRECISION: Final = "precision: the module computes in {}"


class TensorSource(StrEnum):
    """The origin of a tensor."""

    INPUT = "input"  # an argument of the module
    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTensor:
    """One value of a tensor. An in-place operator makes a new one in the same storage.

    Attributes:
        extents: Length of each dim.
        dtype: As PyTorch names it, without `torch.`: `float32`, `int64`, `bool`, ….
        storage: Number of its storage; views of one storage share it.
        storage_elements: How many elements of `dtype` the whole storage has.
        source: Where it comes from.
        name: Of parameters, buffers (dotted, the first of tied names) and inputs; else empty.
        requires_grad: Autograd follows it; of a parameter: it is trained.
    """

    extents: tuple[Extent, ...]
    dtype: str
    storage: int
    storage_elements: Extent
    source: TensorSource = TensorSource.OPERATOR
    name: str = ""
    requires_grad: bool = False

    @property
    def element_bytes(self) -> float:
        """Width of an element. [B]"""
        return element_bytes(self.dtype)


#: Width of the elements of PyTorch's types that are not four bytes wide. [B]
_ELEMENT_BYTES: Final = {
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "complex32": 4,
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


def element_bytes(dtype: str) -> float:
    """Return the width of an element of a type, as PyTorch names it. [B]"""
    return _ELEMENT_BYTES.get(dtype, 4)


def size_bytes(extents: Iterable[Extent], dtype: str) -> Extent:
    """Return the size of a tensor. [B]"""
    return product_of([Extent(coefficient=element_bytes(dtype)), *extents])


def product_of(extents: Iterable[Extent]) -> Extent:
    """Return the number of elements of dims of such lengths."""
    found = Extent()
    for extent in extents:
        found = Extent(
            coefficient=found.coefficient * extent.coefficient,
            batch=found.batch + extent.batch,
            seq=found.seq + extent.seq,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperator:
    """One operator as it was dispatched in forward.

    Attributes:
        target: Its name, such as `aten.addmm.default`. What stands for several dispatched ones has
            a name of its own: `wattree.attention`.
        module: Dotted path of the innermost module that ran it; empty for the root.
        inputs, outputs: Indices into the recording's tensors. `inputs` are in the order of the
            operator's schema, lists opened up.
        arguments: What it got besides tensors, by the names of its schema, as plain values; the
            place of a tensor is held by `{"tensor": position in inputs}`, of a list by a list.
        flop: In matmuls and convolutions, forward.
        input_gradient_flop, weight_gradient_flop: The same of its backward; work of products whose
            result is a parameter's gradient is weight gradient.
        saved: Indices of the tensors that autograd keeps for its backward.
        is_view: Its output is another view of its first input's storage.
        is_pointwise: PyTorch tags it so: each element of its output follows from those that
            broadcast to its place.
        in_place: It writes into its first input.
        region: Number of the checkpointed region it lies in; None outside.
        followed: Autograd follows it, if it follows what it reads: it ran neither under `no_grad`
            nor in inference mode, or within a function that brings its own backward.
    """

    target: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    flop: Extent = field(default_factory=lambda: Extent(coefficient=0.0))
    input_gradient_flop: Extent = field(default_factory=lambda: Extent(coefficient=0.0))
    weight_gradient_flop: Extent = field(default_factory=lambda: Extent(coefficient=0.0))
    saved: tuple[int, ...] = ()
    is_view: bool = False
    is_pointwise: bool = False
    in_place: bool = False
    region: int | None = None
    followed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recording:
    """One module, recorded.

    Attributes:
        name: Name of the model, for messages.
        operators: Operators of the forward pass, in order.
        tensors: All tensors, including parameters and inputs (also those that no operator reads).
        outputs: Indices of the module's outputs.
        modules: Path → class name, for every module of the tree that ran or holds parameters.
        tied: Parameter name → name of the parameter it is the same tensor as.
        batch, sequence: Sizes of the first run; extents are exact there.
        recomputed_flop: FLOP of the forward work that backward repeated.
        loss: Index of the scalar from which backward started; None for the sum of all
            floating-point outputs.
        warnings: Approximations, one line each.
        assumed: What was chosen where nothing says it, one line each.
        how: Kind of run, for messages, such as `fake tensors`.
    """

    name: str
    operators: tuple[RecordedOperator, ...]
    tensors: tuple[RecordedTensor, ...]
    outputs: tuple[int, ...]
    modules: Mapping[str, str]
    tied: Mapping[str, str]
    batch: int
    sequence: int | None
    recomputed_flop: Extent = field(default_factory=lambda: Extent(coefficient=0.0))
    loss: int | None = None
    warnings: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    how: str = "fake tensors"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}, {counted(len(self.operators), 'operator')}>"


def input_bytes(recording: Recording) -> tuple[Extent, ...]:
    """Return the size of each input. [B]"""
    inputs = (t for t in recording.tensors if t.source is TensorSource.INPUT)
    return tuple(size_bytes(tensor.extents, tensor.dtype) for tensor in inputs)
