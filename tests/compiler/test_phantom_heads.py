"""Phantom layers whose features have several dims: heads, and what each head has."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compiler.jobs import Job, check_plays
from wattree.capture import load_model
from wattree.capture.convert.siblings import with_joined_projections
from wattree.errors import StrategyError
from wattree.graph import (
    Block,
    DimRole,
    Extent,
    IterationDim,
    ModelGraph,
    Operand,
    Operator,
    OperatorKind,
    Parameter,
    Phase,
    TaskKind,
    Tensor,
    TensorRole,
    joined_parts,
)
from wattree.lowering.passes.phantom import with_phantoms
from wattree.strategy import PhantomLayers, StrategyOptions, StrategyTree, TreeNode

#: A captured vision transformer: 3 heads of 64, all projections with biases; tokens of an image.
NAME, DEPTH, HIDDEN, TOKENS = "deit-tiny", 12, 192, 197
RANKS, GHOSTS, BATCH, WIDTH = 3, 8, 12, 2.0


@cache
def _images() -> ModelGraph:
    return load_model(NAME)


def _job(**changes: Any) -> Job:
    given: dict[str, Any] = {"phantom_layers": ("attn.*",), "micro_batch": 4, **changes}
    options = StrategyOptions(phantom=True, tp=RANKS, ghosts=GHOSTS, **given)
    return Job.of(_images(), options, global_batch=BATCH, family="pytorch")


def _parameters(inputs: int, outputs: int, sources: int) -> int:
    """Return those of a phantom layer with a bias: blocks, compressors, decompressors."""
    return inputs * outputs // RANKS + GHOSTS * (inputs + sources * outputs) + outputs


@pytest.mark.parametrize(("variant", "sources"), [("pair", RANKS - 1), ("shared", 1)])
def test_projections_of_captured_attention_are_counted_by_the_formulas(
    variant: str, sources: int
) -> None:
    """Parameters, and forward FLOP of a rank: all weights of it twice for each token."""
    job = _job(variant=variant)
    compiled = job.compiled()
    sizes = ((HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN))
    projections = sum(_parameters(*size, sources) for size in sizes)
    dense = sum((a + 1) * b for a, b in sizes)
    assert compiled.program.model.parameters == _images().parameters + DEPTH * (projections - dense)

    graph = compiled.graph
    names = [graph.names[number] for number in graph.name_ids]
    ours = [
        n.startswith(("attn.qkv.", "attn.proj."))
        and graph.kind[i] == TaskKind.COMPUTE
        and graph.phase[i] == Phase.FORWARD
        for i, n in enumerate(names)
    ]
    weights = (projections - sum(b for _, b in sizes)) / RANKS
    assert graph.flop[ours].sum() == 2 * BATCH * TOKENS * DEPTH * weights


def test_heads_go_on_as_they_lie() -> None:
    """Attention works on its own heads: nothing is sent between it and its projections."""
    graph = _job().compiled().graph
    is_sent = graph.kind == TaskKind.COLLECTIVE
    sent = {graph.names[number] for number in graph.name_ids[is_sent]}
    ours = {name for name in sent if name.startswith("attn")}
    ghosts = {f"attn.{each}.ghosts" for each in ("qkv", "proj")}
    # The output is whole where it is added to hidden states.
    assert ours == {*ghosts, *(f"{name}.gradient" for name in ghosts), "attn.proj"}


ALIKE = {
    "pair": {},
    "shared": {"variant": "shared", "dp": 2, "micro_batch": 3},
    "activations": {"exchange": "activations", "micro_batch": 6},
    "regathered": {"regather": True, "recompute": "full", "dp": 2, "micro_batch": 6},
    "stages": {"pp": 2, "micro_batch": 3},
    "sharded": {"fsdp": 2, "sharding": "zero3", "micro_batch": 3},
}


@pytest.mark.parametrize("name", ALIKE)
def test_plays_agree_and_memory_balances(name: str) -> None:
    """Folded and whole, merged and task by task, compiled and in plain Python."""
    check_plays(_job(**ALIKE[name]))


@pytest.mark.parametrize("pattern", ["blocks.*.attn.qkv", "blocks.*.attn.proj"])
def test_heads_are_not_cut(pattern: str) -> None:
    """Those of the outputs, and those that are summed over."""
    tree = StrategyTree(nodes={pattern: TreeNode(phantom=PhantomLayers(ghosts=2))})
    with pytest.raises(StrategyError, match=r"3 heads of '(in|out)' do not divide over 2 ranks"):
        with_phantoms(_images(), tree, {"tp": 2})
    tree = StrategyTree(nodes={pattern: TreeNode(phantom=PhantomLayers(ghosts=65))})
    with pytest.raises(StrategyError, match="more than the 64 features of its input"):
        with_phantoms(_images(), tree, {"tp": 3})


# ---------------------------------------------------------------- products joined of several


def _projection(name: str, heads: int, inner: tuple[int, ...], *, bias: bool) -> Operator:
    own = tuple(
        IterationDim(name=f"out_{place}", extent=Extent(coefficient=float(length)))
        for place, length in enumerate(inner, start=1)
    )
    outputs = ("out", *(dim.name for dim in own))
    count = heads * math.prod(inner)
    weight = Parameter(name=f"{name}.weight", dims=(*outputs, "in"), elements=count * 24)
    return Operator(
        path=name,
        kind=OperatorKind.MATMUL,
        function="linear",
        dims=(
            IterationDim(name="batch", extent=Extent(batch=1)),
            IterationDim(name="in", extent=Extent(coefficient=24.0), role=DimRole.CONTRACTED),
            IterationDim(name="out", extent=Extent(coefficient=float(heads))),
            *own,
        ),
        inputs=(Operand(tensor="x", dims=("batch", "in")),),
        outputs=(Operand(tensor=name, dims=("batch", *outputs)),),
        parameters=(
            weight,
            *([Parameter(name=f"{name}.bias", dims=outputs, elements=count)] if bias else ()),
        ),
        saved=("x",),
        role=TensorRole.COLUMN,
    )


@given(
    heads=st.sampled_from((2, 4, 6)),
    inner=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=2, max_size=3),
    bias=st.booleans(),
)
def test_joined_projections_come_apart(
    heads: int, inner: list[tuple[int, ...]], *, bias: bool
) -> None:
    """Each has its own weights, output and name again; a product of one is left alone."""
    names = [f"attn.{name}_proj" for name in "qkv"]
    alone = [_projection(n, heads, i, bias=bias) for n, i in zip(names, inner, strict=False)]
    given = Tensor(name="x", extents=(Extent(batch=1), Extent(coefficient=24.0)))
    block = Block(name="b", operators=tuple(alone), inputs=(given,))
    (joined,) = with_joined_projections(block).operators
    assert joined_parts(alone[0]) == (alone[0],)
    for part, before in zip(joined_parts(joined), alone, strict=True):
        assert part.path == before.path
        assert [(p.name, p.elements) for p in part.parameters] == [
            (p.name, p.elements) for p in before.parameters
        ]
        assert [o.tensor for o in part.outputs] == [o.tensor for o in before.outputs]
        for operand in part.outputs:
            extents = [part.dim(name).extent.coefficient for name in operand.dims]
            whole = heads * math.prod(_inner(before))
            assert math.prod(extents) * operand.fraction == pytest.approx(whole)
        for parameter in part.parameters:
            lengths = [part.dim(name).extent.coefficient for name in parameter.dims]
            assert math.prod(lengths) == pytest.approx(parameter.elements)


def _inner(operator: Operator) -> list[float]:
    return [d.extent.coefficient for d in operator.dims if d.name.startswith("out_")]
