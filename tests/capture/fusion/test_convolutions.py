"""What kernels of convolutions do besides: which work moves into them, and what has to stay."""

from __future__ import annotations

import pytest

from wattree.capture import load_model
from wattree.capture.fusion import fused
from wattree.capture.fusion.convolutions import AFTER_SUMS, IN_EPILOGUE, IN_LOADS
from wattree.cost.memory_bound import IN_CONVOLUTIONS
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
    SlidingWindow,
)

BATCH = IterationDim(name="batch", extent=Extent(batch=1))
CHANNELS = IterationDim(name="channels", extent=Extent(coefficient=64))
HEIGHT = IterationDim(name="height", extent=Extent(coefficient=8))
DIMS = (BATCH, CHANNELS, HEIGHT)


NAMES = tuple(dim.name for dim in DIMS)


def operator(path: str, kind: OperatorKind, *reads: str) -> Operator:
    """An operator over a batch of 64 channels of 8 positions."""
    return Operator(
        path=path,
        kind=kind,
        function=kind.value,
        dims=DIMS,
        inputs=tuple(Operand(tensor=name, dims=NAMES) for name in reads),
        outputs=(Operand(tensor=path, dims=NAMES),),
    )


def convolution(path: str, reads: str) -> Operator:
    """A convolution of one tap from 64 channels to 64."""
    taken = IterationDim(name="in", extent=CHANNELS.extent, role=DimRole.CONTRACTED)
    return Operator(
        path=path,
        kind=OperatorKind.CONVOLUTION,
        function="convolution",
        dims=(*DIMS, taken),
        inputs=(Operand(tensor=reads, dims=("batch", "in", "height")),),
        outputs=(Operand(tensor=path, dims=NAMES),),
        parameters=(Parameter(name=f"{path}.weight", dims=("channels", "in"), elements=4096),),
        window=SlidingWindow(kernel=(1,), stride=(1,), dilation=(1,)),
        saved=(reads,),
    )


def functions(*operators: Operator, convolutions: bool = True) -> dict[str, str]:
    """Return what the kernels of a block of `operators` do, by path."""
    block = Block(name="block", operators=operators, given=("x",), output=operators[-1].path)
    graph = ModelGraph(
        name="made up",
        architecture="test",
        blocks={"block": block},
        instances=(BlockInstance(path="block", block="block", is_layer=True),),
    )
    made = fused(graph, convolutions=convolutions).blocks["block"].operators
    return {each.path: each.function for each in made}


NORM = operator("norm", OperatorKind.BATCH_NORM, "first")
RELU = operator("relu", OperatorKind.ELEMENTWISE, "norm")


def test_a_norm_between_two_convolutions_needs_no_pass() -> None:
    """The first sums up its results, the second normalizes what it loads."""
    found = functions(convolution("first", "x"), NORM, RELU, convolution("second", "relu"))

    assert found["relu"] == IN_LOADS


def test_a_norm_that_others_read_is_written_once() -> None:
    """A shortcut is added, so the result goes through memory; statistics still come for nothing."""
    add = operator("add", OperatorKind.ELEMENTWISE, "norm", "x")
    found = functions(convolution("first", "x"), NORM, add, convolution("second", "add"))

    assert found["add"] == AFTER_SUMS


def test_two_norms_that_are_added_are_one_kernel() -> None:
    """With their statistics made elsewhere nothing has to end between them."""
    other = operator("other_norm", OperatorKind.BATCH_NORM, "other")
    add = operator("add", OperatorKind.ELEMENTWISE, "norm", "other_norm")
    layers = (convolution("first", "x"), NORM, convolution("other", "x"), other, add)

    assert functions(*layers) == {
        "first": "convolution",
        "other": "convolution",
        "add": AFTER_SUMS,
    }
    assert set(functions(*layers, convolutions=False)) == {"first", "norm", "other", "add"}


def test_an_activation_runs_before_its_convolution_stores() -> None:
    """Nothing but the activation reads what the convolution made."""
    relu = operator("relu", OperatorKind.ELEMENTWISE, "first")

    assert functions(convolution("first", "x"), relu)["relu"] == IN_EPILOGUE


def test_what_is_read_twice_is_stored_first() -> None:
    """Another operator needs the convolution's result as it is."""
    relu = operator("relu", OperatorKind.ELEMENTWISE, "first")
    found = functions(convolution("first", "x"), relu, convolution("second", "first"))

    assert found["relu"] == "elementwise"


def test_a_norm_of_something_else_stays() -> None:
    """No convolution makes what a first norm reads."""
    norm = operator("norm", OperatorKind.BATCH_NORM, "x")

    assert functions(norm, convolution("second", "norm"))["norm"] == "batch_norm"


@pytest.mark.parametrize("name", ["resnet-50", "retinanet-resnet50", "vgg16"])
def test_parameters_convolutions_and_what_is_kept_stay(name: str) -> None:
    """Only where the work is done changes, never the work."""
    plain = load_model(name)
    graph = fused(plain, convolutions=True)
    kinds = {OperatorKind.CONVOLUTION, OperatorKind.MATMUL}
    moved = {o.function for block in graph.blocks.values() for o in block.operators}

    assert graph.parameters == plain.parameters
    assert moved & IN_CONVOLUTIONS.keys()
    for block in plain.blocks:
        before, after = plain.blocks[block], graph.blocks[block]
        assert after.outputs == before.outputs
        assert [o for o in after.operators if o.kind in kinds] == [
            o for o in before.operators if o.kind in kinds
        ]
