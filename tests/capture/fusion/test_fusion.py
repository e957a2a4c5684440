"""Merging operators into kernels: what must stay, what must shrink, and where kernels end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from wattree.capture import load_model
from wattree.capture.fusion import fused
from wattree.capture.fusion.groups import groups_of
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
)

MODELS = ("llama-3.1-8b", "gpt2-xl", "mixtral-8x7b", "bert-large", "gemma-2-9b")
DIMS = (
    IterationDim(name="batch", extent=Extent(batch=1)),
    IterationDim(name="hidden", extent=Extent(coefficient=64)),
)


def pointwise(path: str, *reads: str, **changes: object) -> Operator:
    """An element-wise operator over a batch of 64 features."""
    fields: dict[str, object] = {
        "path": path,
        "kind": OperatorKind.ELEMENTWISE,
        "function": path,
        "dims": DIMS,
        "inputs": tuple(Operand(tensor=name, dims=("batch", "hidden")) for name in reads),
        "outputs": (Operand(tensor=path, dims=("batch", "hidden")),),
    }
    return Operator(**(fields | changes))  # type: ignore[arg-type]


def product(path: str, reads: str) -> Operator:
    """A square product."""
    return Operator(
        path=path,
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(
            DIMS[0],
            IterationDim(name="out", extent=Extent(coefficient=64)),
            IterationDim(name="in", extent=Extent(coefficient=64), role=DimRole.CONTRACTED),
        ),
        inputs=(Operand(tensor=reads, dims=("batch", "in")),),
        outputs=(Operand(tensor=path, dims=("batch", "out")),),
        parameters=(Parameter(name=f"{path}.weight", dims=("out", "in"), elements=4096),),
        saved=(reads,),
    )


def model(*operators: Operator) -> ModelGraph:
    """A model of one block."""
    block = Block(name="block", operators=operators, given=("x", "y"), output=operators[-1].path)
    return ModelGraph(
        name="made up",
        architecture="test",
        blocks={"block": block},
        instances=(BlockInstance(path="block", block="block", is_layer=True),),
    )


def operators_of(graph: ModelGraph) -> tuple[Operator, ...]:
    """Operators of that block."""
    return graph.blocks["block"].operators


def moved(operator: Operator) -> float:
    """Elements read and written, at 3 samples of 5 tokens."""
    total = 0.0
    for operand in (*operator.inputs, *operator.outputs):
        size = operand.fraction
        for name in operand.dims:
            size *= operator.dim(name).extent.value(micro_batch=3, sequence=5)
        total += size
    return total


@pytest.mark.parametrize("name", MODELS)
def test_products_parameters_and_results_stay(name: str) -> None:
    """A compiler merges what moves bytes; products are the library's."""
    plain = load_model(name)
    graph = fused(plain)
    assert graph.parameters == plain.parameters
    for block in plain.blocks:
        before, after = plain.blocks[block], graph.blocks[block]
        assert after.output == before.output
        assert [o for o in after.operators if o.kind is OperatorKind.MATMUL] == [
            o for o in before.operators if o.kind is OperatorKind.MATMUL
        ]
        assert sum(o.saved_mask_bytes for o in after.operators) == sum(
            o.saved_mask_bytes for o in before.operators
        )


@pytest.mark.parametrize("name", MODELS)
def test_less_is_moved_and_launched(name: str) -> None:
    """What lies inside a kernel never reaches memory."""
    plain = load_model(name)
    graph = fused(plain)
    layer = max(plain.blocks, key=lambda block: len(plain.blocks[block].operators))
    before, after = plain.blocks[layer].operators, graph.blocks[layer].operators
    assert sum(map(moved, after)) < sum(map(moved, before))
    assert sum(o.kernels for o in after) < sum(o.kernels for o in before)


@pytest.mark.parametrize("name", MODELS)
def test_merging_again_changes_nothing(name: str) -> None:
    """One pass finds all that can be merged."""
    graph = fused(load_model(name))
    assert fused(graph) == graph


def test_a_chain_is_one_kernel_that_keeps_what_it_read() -> None:
    """Backward makes the inside of a chain again from its one input."""
    chain = (
        pointwise("a", "x"),
        pointwise("b", "a", saved=("a",)),
        pointwise("c", "b", saved=("b",)),
    )
    (kernel,) = operators_of(fused(model(*chain)))
    assert [o.tensor for o in kernel.inputs] == ["x"]
    assert [o.tensor for o in kernel.outputs] == ["c"]
    assert kernel.saved == ("x",)
    assert kernel.function == "a+b+c"


def test_one_tensor_inside_is_kept_instead_of_three_that_were_read() -> None:
    """A partitioner keeps the smaller side of the cut."""
    chain = (
        pointwise("a", "p", "q"),
        pointwise("b", "a", "r"),
        pointwise("c", "b", saved=("b",)),
    )
    products = (product("p", "x"), product("q", "x"), product("r", "x"))
    kernel = operators_of(fused(model(*products, *chain)))[-1]
    assert kernel.saved == ("b",)
    assert {o.tensor for o in kernel.outputs} == {"b", "c"}


def test_a_product_ends_a_kernel_and_reads_what_it_wrote() -> None:
    """Nothing is merged into the library's products."""
    operators = (pointwise("a", "x"), product("p", "a"), pointwise("b", "p"), pointwise("c", "b"))
    assert [o.path for o in operators_of(fused(model(*operators)))] == ["a", "p", "c"]


def test_nothing_joins_a_kernel_that_it_has_to_wait_for() -> None:
    """A kernel cannot wait inside for what reads it."""
    # c reads a and a product of a: in a's kernel it would run before that product.
    operators = (pointwise("a", "x"), product("p", "a"), pointwise("c", "a", "p"))
    assert [o.path for o in operators_of(fused(model(*operators)))] == ["a", "p", "c"]


def test_a_skip_round_a_product_does_not_turn_the_order_round() -> None:
    """Of two kernels that it reads, an operator joins the later one."""
    operators = (
        pointwise("a", "x"),
        pointwise("b", "a"),
        product("p", "b"),
        pointwise("c", "p", "a"),
        pointwise("d", "c", "b"),
    )
    paths = [o.path for o in operators_of(fused(model(*operators)))]
    assert paths == ["b", "p", "d"]


def test_batch_statistics_begin_a_kernel() -> None:
    """They need all samples before the first result."""
    normed = pointwise("n", "a", kind=OperatorKind.BATCH_NORM)
    operators = (pointwise("a", "x"), normed, pointwise("relu", "n"))
    kinds = [o.kind for o in operators_of(fused(model(*operators)))]
    assert kinds == [OperatorKind.ELEMENTWISE, OperatorKind.BATCH_NORM]


def test_what_is_read_outside_is_still_written() -> None:
    """A tensor with a reader elsewhere leaves its kernel."""
    operators = (pointwise("a", "x"), pointwise("b", "a"), product("p", "a"), pointwise("c", "p"))
    written = {o.tensor for op in operators_of(fused(model(*operators))) for o in op.outputs}
    assert "a" in written


def test_kernels_run_in_an_order_in_which_each_finds_its_inputs() -> None:
    """Kernels follow each other as their operators did."""
    operators = tuple(pointwise(f"o{i}", f"o{i - 1}" if i else "x") for i in range(9))
    groups = groups_of(operators)
    assert all(a[-1] < b[-1] for a, b in pairwise(groups))


@pytest.mark.parametrize("extent", [Extent(coefficient=2, batch=1), Extent(batch=1, seq=1)])
def test_another_iteration_space_is_another_kernel(extent: Extent) -> None:
    """Loops of other lengths are not merged."""

    def dims(size: Extent) -> Callable[[], tuple[IterationDim, ...]]:
        return lambda: (IterationDim(name="batch", extent=size), DIMS[1])

    other = pointwise("b", "a", dims=dims(extent)())
    assert len(operators_of(fused(model(pointwise("a", "x"), other)))) == 2


@pytest.mark.parametrize("name", ["wide-deep", "ssd300-vgg16", "retinanet-resnet50", "gnmt"])
def test_a_loss_that_is_fused_with_what_it_sums_can_still_be_split_by_samples(name: str) -> None:
    """Parts of such a kernel hold some samples, and terms of the sum over all."""
    merged = fused(load_model(name))

    batches = [
        dim
        for block in merged.blocks.values()
        for operator in block.operators
        for dim in operator.dims
        if dim.extent.batch and dim.name == "batch"
    ]
    assert batches
    assert all(dim.role is not DimRole.OPAQUE for dim in batches)


def test_a_loop_that_no_output_has_is_summed_over() -> None:
    """Whatever the parts of the kernel did with it on the way."""
    summed = pointwise(
        "loss",
        "exp",
        kind=OperatorKind.REDUCTION,
        dims=tuple(replace(dim, role=DimRole.CONTRACTED) for dim in DIMS),
        outputs=(Operand(tensor="loss", dims=()),),
    )
    (operator,) = operators_of(fused(model(pointwise("exp", "x"), summed)))

    assert {dim.role for dim in operator.dims} == {DimRole.CONTRACTED}


def cast(path: str, reads: str) -> Operator:
    """A copy to another width."""
    return replace(pointwise(path, reads), kind=OperatorKind.COPY, function="cast")


def test_a_cast_takes_no_kernel_between_others() -> None:
    """It happens in registers; other copies go through memory."""
    wide = cast("wide", "first")
    graph = model(pointwise("first", "x"), wide, pointwise("last", "wide"))
    moved_about = replace(wide, function="copy")
    other = model(pointwise("first", "x"), moved_about, pointwise("last", "wide"))

    assert len(operators_of(fused(graph))) == 1
    assert len(operators_of(fused(other))) == 3


def test_chains_that_meet_are_one_kernel() -> None:
    """Two of the same size begin with different tensors and are added."""
    left, right = pointwise("left", "x"), pointwise("right", "y")
    graph = model(left, right, pointwise("sum", "left", "right"))

    (only,) = operators_of(fused(graph))
    assert [operand.tensor for operand in only.inputs] == ["x", "y"]


def test_chains_with_a_product_between_stay_two_kernels() -> None:
    """One waits for a product of the other's result, so no kernel can hold both."""
    left = pointwise("left", "x")
    behind = product("product", "left")
    right = pointwise("right", "product")
    found = operators_of(fused(model(left, behind, right, pointwise("sum", "left", "right"))))

    assert [operator.path for operator in found] == ["left", "product", "sum"]


def test_a_kernel_that_reads_a_view_saves_what_is_viewed() -> None:
    """Modulation by halves of a product (adaLN): backward reads the product, made elsewhere."""
    view = pointwise("half", "ada", kind=OperatorKind.COPY, function="slice")
    scaled = pointwise("scaled", "l", "half", saved=("ada", "l"))
    graph = model(product("ada", "x"), view, product("l", "y"), scaled, pointwise("sum", "scaled"))

    assert operators_of(fused(graph))[-1].saved == ("ada", "l")
