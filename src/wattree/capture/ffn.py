"""The built-in `ffn`: a stack of linear layers with an activation between them.

The model of a job's `ffn:` block. Samples are vectors, so nothing grows with a sequence. Layers
are instances `layers.0`, `layers.1`, …; each but the first begins with the activation, the first
with what its rank is fed of the samples, and the last ends in the loss. So what layers hand each
other is what a linear layer made: it can lie split by features, and be gathered, or multiplied
where it lies, inside the layer that reads it.
"""

from __future__ import annotations

from typing import Final

from wattree.capture.parts import BATCH, features
from wattree.graph import (
    Block,
    BlockInstance,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    Tensor,
    TensorRole,
)
from wattree.job import CROSS_ENTROPY, Ffn

#: What a sample and a regression's target take per value, and a class: as loaders hand them to
#: the device (float32, int64). [B]
_VALUE_BYTES, _CLASS_BYTES = 4.0, 8.0
#: Activations whose gradient follows from their output, which the linear layer keeps anyway.
_FROM_OUTPUT: Final = frozenset({"relu", "tanh", "sigmoid"})
#: Kernels of the losses: one of MSE; log-softmax and the pick of the class.
_LOSS_KERNELS: Final = {"mse": 1, CROSS_ENTROPY: 2}


def build_ffn(ffn: Ffn) -> ModelGraph:
    """Return the model graph of a stack."""
    blocks: dict[str, Block] = {}
    instances = []
    for number in range(ffn.depth):
        block = _block(ffn, number)
        blocks.setdefault(block.name, block)
        instances.append(BlockInstance(path=f"layers.{number}", block=block.name, is_layer=True))
    target = _CLASS_BYTES if ffn.loss == CROSS_ENTROPY else _VALUE_BYTES * ffn.outputs
    return ModelGraph(
        name="ffn",
        architecture="ffn",
        blocks=blocks,
        instances=tuple(instances),
        inputs=(
            Extent(coefficient=_VALUE_BYTES * ffn.inputs, batch=1),
            Extent(coefficient=target, batch=1),
        ),
    )


def _block(ffn: Ffn, number: int) -> Block:
    """Return the block of layer `number`; those between the ends are all the same one."""
    first, last = number == 0, number == ffn.depth - 1
    rows = ffn.inputs if first else ffn.width
    columns = ffn.outputs if last else ffn.width
    operators = [
        _fed(ffn) if first else _activation(ffn),
        _linear("fed" if first else "activation", rows, columns, bias=ffn.bias),
        *((_loss(ffn),) if last else ()),
    ]
    names = {(True, True): "only", (True, False): "first", (False, True): "last"}
    return Block(
        name=names.get((first, last), "layer"),
        operators=tuple(operators),
        inputs=() if first else (_state(rows),),
        output=None if last else "linear",
        given=(*(("samples", "fed") if first else ()), *(("targets",) if last else ())),
    )


def _state(width: int) -> Tensor:
    return Tensor(name="hidden", extents=(Extent(batch=1), Extent(coefficient=width)))


def _fed(ffn: Ffn) -> Operator:
    """Return the operator that provides a rank's part of the samples, at no cost."""
    dims = ("batch", "hidden")
    return Operator(
        path="fed",
        kind=OperatorKind.COPY,
        function="view",
        dims=(BATCH, features("hidden", ffn.inputs)),
        inputs=(Operand(tensor="samples", dims=dims),),
        outputs=(Operand(tensor="fed", dims=dims),),
        kernels=0,
        role=TensorRole.EITHER,
    )


def _linear(reads: str, rows: int, columns: int, *, bias: bool) -> Operator:
    weight = Parameter(name="linear.weight", dims=("out", "in"), elements=rows * columns)
    added = Parameter(name="linear.bias", dims=("out",), elements=columns)
    return Operator(
        path="linear",
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(BATCH, features("out", columns), features("in", rows, role=DimRole.CONTRACTED)),
        inputs=(Operand(tensor=reads, dims=("batch", "in")),),
        outputs=(Operand(tensor="linear", dims=("batch", "out")),),
        parameters=(weight, added) if bias else (weight,),
        saved=(reads,),
        role=TensorRole.EITHER,
    )


def _activation(ffn: Ffn) -> Operator:
    dims = ("batch", "hidden")
    return Operator(
        path="activation",
        kind=OperatorKind.ELEMENTWISE,
        function=ffn.activation,
        dims=(BATCH, features("hidden", ffn.width)),
        inputs=(Operand(tensor="hidden", dims=dims),),
        outputs=(Operand(tensor="activation", dims=dims),),
        saved=("activation",) if ffn.activation in _FROM_OUTPUT else ("hidden",),
        role=TensorRole.EITHER,
    )


def _loss(ffn: Ffn) -> Operator:
    """Return the loss: a mean over samples and outputs, each part of which a rank can take."""
    samples = IterationDim(name="batch", extent=BATCH.extent, role=DimRole.CONTRACTED)
    classes = ffn.loss == CROSS_ENTROPY
    # A softmax needs all classes of a sample.
    role = DimRole.OPAQUE if classes else DimRole.CONTRACTED
    dims = ("batch", "hidden")
    target = (
        Operand(tensor="targets", dims=("batch",), element_bytes=_CLASS_BYTES)
        if classes
        else Operand(tensor="targets", dims=dims)
    )
    return Operator(
        path="loss",
        kind=OperatorKind.CROSS_ENTROPY if classes else OperatorKind.REDUCTION,
        function="cross_entropy" if classes else "mse_loss",
        dims=(samples, features("hidden", ffn.outputs, role=role)),
        inputs=(Operand(tensor="linear", dims=dims), target),
        outputs=(Operand(tensor="loss", dims=()),),
        saved=("linear",),
        kernels=_LOSS_KERNELS[ffn.loss],
    )
