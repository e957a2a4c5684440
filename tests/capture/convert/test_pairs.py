"""Column-row pairs across blocks: plain stacks of linear layers under tensor parallelism."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.capture.convert.test_structure import graph_of
from tests.compiler.jobs import WIDTH, Job
from tests.search import jobs
from tests.sim.reference import reference_events
from wattree.capture import capture_module
from wattree.capture.convert import model_graph
from wattree.closed_form.strategies import estimate
from wattree.cost import load_calibration
from wattree.graph import ModelGraph, Operator, OperatorKind, TensorRole
from wattree.predict import setting_of
from wattree.predict.simulation import predicted
from wattree.sim import execute
from wattree.strategy import StrategyOptions

BATCH = 16
COLUMN, ROW = TensorRole.COLUMN, TensorRole.ROW


class Stage(nn.Module):
    """A layer of a pipeline, with its activation after or before it."""

    def __init__(self, into: int, out: int, *, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = first
        self.linear, self.act = nn.Linear(into, out), nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.linear(self.first(x)) if self.first else self.act(self.linear(x))


@cache
def stack(*widths: int, between: str = "ReLU") -> ModelGraph:
    """Return the graph of linear layers of these widths with `between` after all but the last."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for into, out in pairwise(widths):
            layers += [nn.Linear(into, out)]
            layers += [getattr(nn, name)(*_size(name, out)) for name in between.split("+")]
        return nn.Sequential(*layers[: -len(between.split("+"))])

    return graph_of(build, widths[0])


def _size(name: str, width: int) -> list[int]:
    return [width] if "Norm" in name else [-1] if name == "Softmax" else []


def products(graph: ModelGraph) -> list[Operator]:
    """Return the products with weights, in forward order."""
    return [
        operator
        for instance in graph.instances
        for operator in graph.blocks[instance.block].operators
        if operator.kind is OperatorKind.MATMUL and operator.parameters
    ]


def roles(graph: ModelGraph) -> list[TensorRole | None]:
    """Return the roles of the products, in forward order."""
    return [operator.role for operator in products(graph)]


def traffic(job: Job) -> dict[str, list[tuple[str, float]]]:
    """Return kind and bytes of all collectives of activations over `tp`, by phase, sorted."""
    found: dict[str, list[tuple[str, float]]] = {"forward": [], "backward": []}
    for instance in job.model.instances:
        for each in job.collectives(instance.block):
            assert each.axes == ("tp",)
            found[each.phase].append((each.kind, each.size_bytes))
    return {phase: sorted(moved) for phase, moved in found.items()}


def without_roles(graph: ModelGraph) -> ModelGraph:
    """Return the graph as if nothing was known of tensor parallelism, like blocks one again."""
    blocks = {}
    first: dict[object, str] = {}
    names = {}
    for name, block in graph.blocks.items():
        operators = tuple(replace(operator, role=None) for operator in block.operators)
        key = (operators, block.inputs, block.output, block.given)
        names[name] = first.setdefault(key, name)
        blocks[name] = replace(block, operators=operators)
    return replace(
        graph,
        blocks={name: blocks[name] for name in first.values()},
        instances=tuple(replace(i, block=names[i.block]) for i in graph.instances),
    )


# ---------------------------------------------------------------- what is paired


def test_layers_of_a_stack_are_columns_and_rows_by_turns() -> None:
    """Though each is a block of its own, which pipelines may be cut between."""
    graph = stack(64, 128, 128, 128, 128, 128, 8)

    assert roles(graph) == [COLUMN, ROW] * 3
    assert [instance.path for instance in graph.instances] == ["0", "2", "4", "6", "8", "10"]
    # Two kinds of layer of 128 to 128: those split by columns, and those by rows.
    assert [i.block for i in graph.instances][1:5] == ["2", "2:2", "2", "2:2"]


@pytest.mark.parametrize(
    ("widths", "last"),
    [
        ((64, 64, 64, 64), COLUMN),
        ((64, 64, 64, 32), ROW),  # the shorter side is summed
        ((64, 64, 64, 8), None),  # its exchange saves next to nothing
        ((64, 64, 32, 40), None),  # 32 inputs and 40 outputs block tp 64
        ((64, 24, 64, 24), ROW),  # but 64 divide by 8, as do the pair's 24
    ],
)
def test_an_odd_layer_is_split_where_that_pays(
    widths: tuple[int, ...], last: TensorRole | None
) -> None:
    """Left whole it would take as long as the others split over a node."""
    assert roles(stack(*widths)) == [COLUMN, ROW, last]


@pytest.mark.parametrize(
    ("between", "paired"),
    [
        ("GELU", True),
        ("ReLU+Dropout", True),
        ("BatchNorm1d+ReLU", True),  # by feature
        ("LayerNorm+ReLU", False),  # over all features
        ("Softmax", False),
    ],
)
def test_only_what_works_feature_by_feature_may_lie_between(between: str, *, paired: bool) -> None:
    """Everything else needs all features of a sample."""
    graph = stack(64, 128, 64, between=between)

    assert roles(graph) == ([COLUMN, ROW] if paired else [None, None])


def test_layers_in_modules_of_their_own_are_paired_if_they_read_the_input_first() -> None:
    """A block's input has the layout that its first reader needs; an activation needs none."""
    after = graph_of(lambda: nn.Sequential(*[Stage(64, 64) for _ in range(4)]), 64)
    before = graph_of(
        lambda: nn.Sequential(*[Stage(64, 64, first=nn.ReLU()) for _ in range(4)]), 64
    )

    assert roles(after) == [COLUMN, ROW, COLUMN, ROW]
    assert roles(before) == [None] * 4


def test_three_layers_in_one_block_are_a_pair_and_one_alone() -> None:
    """A product has one split only, so it cannot end one pair and begin the next."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            for layer in self.layers:
                y = torch.relu(layer(y))
            return x + y

    graph = graph_of(Net, 64)
    job = Job.of(graph, StrategyOptions(tp=2, micro_batch=BATCH))

    assert roles(graph) == [COLUMN, ROW, COLUMN]
    # The sum works feature by feature, so it goes on with what the third has made.
    assert traffic(job) == {
        "forward": [("all_reduce", BATCH * 64 * WIDTH)],
        "backward": [("all_reduce", BATCH * 64 * WIDTH)],
    }


# ---------------------------------------------------------------- what it costs


SIZES = st.sampled_from([64, 128, 192, 256])


@given(
    widths=st.lists(SIZES, min_size=3, max_size=6),
    tp=st.sampled_from([2, 4, 8]),
    dp=st.sampled_from([1, 2]),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_a_pair_sums_its_output_forward_and_its_input_s_gradient_backward(
    widths: list[int], tp: int, dp: int
) -> None:
    """Batch x features each (Shoeybi et al. 2019, fig. 3); the samples need no gradient."""
    graph = stack(*widths)
    sharding = "zero3" if dp > 1 else "none"
    options = StrategyOptions(tp=tp, dp=dp, micro_batch=BATCH, sharding=sharding)
    job = Job.of(graph, options, global_batch=BATCH * dp)
    unit = BATCH * WIDTH
    pairs = (len(widths) - 1) // 2
    forward = [("all_reduce", unit * widths[2 * k + 2]) for k in range(pairs)]
    backward = [("all_reduce", unit * widths[2 * k]) for k in range(1, pairs)]
    if (len(widths) - 1) % 2:
        into, out = widths[-2:]
        role = products(graph)[-1].role
        if role is COLUMN:  # its result stays split
            assert out >= into
            backward.append(("all_reduce", unit * into))
        elif role is ROW:
            assert out < into
            forward.append(("all_reduce", unit * out))
            backward.append(("all_gather", unit * into))

    assert traffic(job) == {"forward": sorted(forward), "backward": sorted(backward)}


def test_positions_are_spread_between_pairs_under_sequence_parallelism() -> None:
    """A gather before each pair and a scatter of sums after it (Korthikanti et al. 2022)."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()]
    recording = capture_module(
        lambda: nn.Sequential(*layers, *layers), inputs=["float32[batch, seq, 64]"], sequence=32
    )
    graph = model_graph(recording)
    options = StrategyOptions(tp=2, micro_batch=BATCH, sequence_parallel=True)
    moved = traffic(Job.of(graph, options, sequence=32))
    states = BATCH * 32 * 64 * WIDTH

    assert roles(graph) == [COLUMN, ROW] * 2
    assert moved["forward"] == [("all_gather", states), *[("reduce_scatter", states)] * 2]


@pytest.mark.parametrize(
    "options",
    [
        StrategyOptions(tp=8, micro_batch=8),
        StrategyOptions(tp=4, dp=2, micro_batch=8),
        StrategyOptions(tp=2, fsdp=4, micro_batch=8, sharding="zero3"),
        StrategyOptions(tp=2, pp=2, dp=2, micro_batch=8),
        StrategyOptions(tp=2, pp=4, micro_batch=8, recompute="full"),
    ],
    ids=str,
)
def test_folding_and_the_fast_executor_change_nothing(options: StrategyOptions) -> None:
    """A pipeline may part a pair: what it sends then is a part of the features."""
    job = Job.of(stack(64, 128, 128, 128, 128, 64), options, global_batch=64)
    folded, whole = job.compiled().graph, job.compiled(fold=False).graph
    trace, unfolded = execute(folded), execute(whole)
    slow, _ = reference_events(folded)

    assert trace.makespan_s == pytest.approx(unfolded.makespan_s, rel=1e-9)
    assert slow.end_s == pytest.approx(trace.end_s, rel=1e-9)
    peaks = np.sort(np.repeat(trace.peak_bytes, folded.class_ranks))
    assert peaks == pytest.approx(np.sort(unfolded.peak_bytes), rel=1e-9)


@pytest.mark.parametrize("options", [{"dp": 8}, {"fsdp": 8, "sharding": "zero3"}, {"pp": 2}])
def test_roles_change_nothing_without_tensor_parallelism(options: dict[str, object]) -> None:
    """Neither time nor memory, though alike layers are several blocks by their roles."""
    graph = stack(64, 128, 128, 128, 128, 128, 64)
    plain = without_roles(graph)
    assert len(plain.blocks) < len(graph.blocks)
    both = []
    for model in (graph, plain):
        chosen = StrategyOptions(micro_batch=8, **options)  # type: ignore[arg-type]
        trace = execute(Job.of(model, chosen, global_batch=64).compiled().graph)
        both.append((trace.makespan_s, trace.peak_bytes.max()))

    assert both[0] == both[1]


@pytest.mark.parametrize(
    "options",
    [
        StrategyOptions(tp=8, micro_batch=64),
        StrategyOptions(tp=2, dp=4, micro_batch=16),
        StrategyOptions(tp=4, fsdp=2, micro_batch=32, sharding="zero3"),
    ],
    ids=str,
)
def test_screening_is_close_to_the_play(options: StrategyOptions) -> None:
    """Same blocks and costs; fixed overheads, which are most of so small a step, are left out."""
    graph = stack(1024, 4096, 4096, 4096, 4096, 1024)
    job = setting_of(jobs.job(batch=64), load_calibration(None), model=graph)
    job = replace(
        job, pool_rates=tuple(replace(rates, step_overhead_s=0.0) for rates in job.pool_rates)
    )
    executed = predicted(job, options).result
    screened = estimate(job, options)

    assert screened.step_time_s[0] == pytest.approx(executed.step_time_s, rel=0.1)
