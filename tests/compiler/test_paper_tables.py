"""Traffic of recommendation models and of adapters, as their papers have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.jobs import (
    HIDDEN,
    WIDTH,
    Job,
    counted,
    dense,
    moved_bytes,
)
from tests.compiler.paper_traffic import sent_per_step
from wattree.capture import load_model
from wattree.capture.adapters import with_lora
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
)
from wattree.strategy import Mesh, Schedule, Strategy, StrategyOptions, StrategyTree, TreeNode

# ---------------------------------------------------------------- recommendation models


TABLES, ROWS, EMBEDDED, TOP = 16, 1000, 8, 4


def recommendation_model() -> ModelGraph:
    """Return embedding tables, looked up once each, and a top network over their concatenation.

    Naumov et al., "Deep Learning Recommendation Model", 2019, without its bottom network.
    """
    batch = IterationDim(name="batch", extent=Extent(batch=1))
    table = IterationDim(name="table", extent=Extent(coefficient=TABLES), units=TABLES)
    rows = IterationDim(name="row", extent=Extent(coefficient=ROWS), role=DimRole.OPAQUE)
    vector = IterationDim(name="vector", extent=Extent(coefficient=EMBEDDED))
    lookup = Operator(
        path="tables",
        kind=OperatorKind.EMBEDDING,
        function="embedding_bag",
        dims=(batch, table, rows, vector),
        inputs=(Operand(tensor="ids", dims=("batch", "table")),),
        outputs=(Operand(tensor="vectors", dims=("batch", "table", "vector")),),
        parameters=(
            Parameter(
                name="tables.weight",
                dims=("table", "row", "vector"),
                elements=TABLES * ROWS * EMBEDDED,
            ),
        ),
    )
    network = Operator(
        path="top",
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(
            batch,
            IterationDim(name="out", extent=Extent(coefficient=TOP)),
            replace(table, role=DimRole.CONTRACTED),
            replace(vector, role=DimRole.CONTRACTED),
        ),
        inputs=(Operand(tensor="vectors", dims=("batch", "table", "vector")),),
        outputs=(Operand(tensor="scores", dims=("batch", "out")),),
        parameters=(
            Parameter(
                name="top.weight", dims=("out", "table", "vector"), elements=TOP * TABLES * EMBEDDED
            ),
        ),
        saved=("vectors",),
    )
    sparse = Block(name="sparse", operators=(lookup,), output="vectors")
    extents = (batch.extent, table.extent, vector.extent)
    dense_part = Block(
        name="dense",
        operators=(network,),
        inputs=(Tensor(name="vectors", extents=extents),),
    )
    return ModelGraph(
        name="dlrm",
        architecture="dlrm",
        blocks={"sparse": sparse, "dense": dense_part},
        instances=(
            BlockInstance(path="sparse", block="sparse", is_layer=False),
            BlockInstance(path="dense", block="dense", is_layer=True),
        ),
    )


def table_sharded(ranks: int) -> Strategy:
    """Return whole tables on each rank, everything else data-parallel."""
    return Strategy(
        mesh=Mesh.of({"dp": ranks}),
        schedule=Schedule(),
        tree=StrategyTree(
            nodes={
                "": TreeNode(compute={"batch": ("dp",)}),
                "sparse.tables": TreeNode(compute={"batch": (), "table": ("dp",)}),
            }
        ),
    )


@pytest.mark.parametrize("ranks", [2, 8])
def test_table_wise_sharding_exchanges_embedding_vectors(ranks: int) -> None:
    """Naumov et al. 2019, §4 (butterfly shuffle): each rank looks its tables up for all samples.

    Its buffer of B x T / N vectors is exchanged for the B / N x T of its own samples.
    """
    samples = 2 * ranks
    strategy = table_sharded(ranks)
    job = Job(
        model=recommendation_model(),
        strategy=strategy,
        cluster=Job.of(dense(), StrategyOptions(dp=ranks)).cluster,
        global_batch=samples,
    )
    exchanged_bytes = samples * TABLES / ranks * EMBEDDED * WIDTH

    found = counted(job.collectives("sparse"), "forward") + counted(
        job.collectives("sparse"), "backward"
    )

    assert dict(found) == {("all_to_all", ("dp",), exchanged_bytes): 2}
    assert job.collectives("dense") == []


def test_sharded_tables_reduce_no_gradient_and_the_network_does() -> None:
    """Every row lives on one rank; the dense part is replicated."""
    job = Job(
        model=recommendation_model(),
        strategy=table_sharded(4),
        cluster=Job.of(dense(), StrategyOptions(dp=4)).cluster,
        global_batch=8,
    )

    graph = job.compiled().graph

    assert moved_bytes(graph, "gradients.reduce") == pytest.approx(
        TOP * TABLES * EMBEDDED * 2.0 * 2 * 3 / 4
    )


# ---------------------------------------------------------------- adapters


def test_frozen_products_have_no_weight_gradient() -> None:
    """Hu et al., ICLR 2022, §4.2: gradients are needed for the low-rank matrices only."""
    model = with_lora(dense(), rank=2, targets=["attention.qkv", "attention.out"])
    program = Job.of(model, StrategyOptions()).program()
    (layer,) = {p for p in program.programs if p.block == "layer" and p.backward_exit >= 0}

    trained = [s.path for s in layer.backward if getattr(s, "phase", "") == "weight_gradient"]

    assert sorted(trained) == [
        f"attention.{part}.lora_{side}" for part in ("out", "qkv") for side in ("a", "b")
    ]


def test_adapters_reduce_and_update_their_own_elements_only() -> None:
    """Frozen weights have no gradient to reduce, no accumulated one, and no optimizer state."""
    rank, layers = 2, 2
    model = with_lora(dense(layers), rank=rank, targets=["attention.qkv"], joint=True)
    own = {"placeholder_gradients": False}
    job = Job.of(model, StrategyOptions(dp=2), global_batch=2, traits=own)
    adapters = layers * rank * (HIDDEN + 3 * HIDDEN)
    graph = job.compiled().graph
    category = dict(zip(graph.category_names, graph.static_by_category[0], strict=True))

    assert model.trainable_parameters == adapters
    assert sent_per_step(job) == adapters * 2.0 * 2 * 1 / 2
    assert category["gradients"] == adapters * 2.0
    assert category["optimizer"] == adapters * (4.0 + 8.0)  # fp32 copy and two moments


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_adapters_on_a_catalogue_model_hold_little_but_weights(name: str) -> None:
    """Hu et al., ICLR 2022, §4.2: memory for gradients and optimizer states falls with them."""
    whole = load_model(name)
    adapted = with_lora(whole, rank=8, targets=["attention.*"])

    held = {}
    for model in (whole, adapted):
        own = {"placeholder_gradients": False}
        graph = Job.of(model, StrategyOptions(dp=8), global_batch=8, traits=own).compiled().graph
        rows = dict(zip(graph.category_names, graph.static_by_category[0], strict=True))
        held[model is adapted] = rows

    share = adapted.trainable_parameters / whole.parameters
    assert share < 0.01
    for item in ("gradients", "optimizer"):
        assert held[True][item] == pytest.approx(share * held[False][item], rel=1e-9)
    assert held[True]["parameters"] == pytest.approx(adapted.parameters * 2.0, rel=1e-9)
