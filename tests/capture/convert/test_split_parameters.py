"""What tensor parallelism leaves of a captured module's parameters on a rank, and what it sums."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch import Tensor, nn

from tests.capture.convert.test_structure import operators
from tests.compiler.jobs import Job
from tests.sim.reference import reference_events
from wattree.capture import capture_module
from wattree.capture.convert import model_graph
from wattree.graph import ModelGraph, OperatorKind, TensorRole
from wattree.sim import execute
from wattree.strategy import StrategyOptions

VOCABULARY, HIDDEN, LENGTH = 4096, 64, 16


class _Scored(nn.Module):
    """A language model with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Run it."""
        logits = self.head(self.table(ids))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class _History(nn.Module):
    """A recommender that looks up what was seen before; it has no logits of as many items."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Run it."""
        return self.head(self.table(ids).mean(1))


def language_model() -> nn.Module:
    """Return the smallest one."""
    return nn.Sequential(nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY))


def graph_of(build: type[nn.Module] | object, length: str) -> ModelGraph:
    """Return the graph of a module of tokens."""
    sequence = LENGTH if length == "seq" else None
    return model_graph(
        capture_module(build, inputs=[f"int64[batch, {length}]"], sequence=sequence)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("length", ["seq", str(LENGTH)])
@pytest.mark.parametrize("build", [language_model, _Scored])
def test_table_and_logits_are_split_by_vocabulary(build: object, length: str) -> None:
    """Whether the length of a sequence is free or fixed."""
    graph = graph_of(build, length)
    split = [o.kind for o in operators(graph) if o.role is TensorRole.VOCABULARY]
    parameters = [
        group
        for program in Job.of(graph, StrategyOptions(tp=4), sequence=LENGTH).program().programs
        for group in program.parameters
    ]

    assert split == [OperatorKind.EMBEDDING, OperatorKind.MATMUL]
    assert all(group.elements.divisors == ("tp",) for group in parameters)


def test_a_table_without_logits_is_no_table_of_tokens() -> None:
    """Presets for tables decide where those lie."""
    graph = graph_of(_History, str(LENGTH))

    assert not [o for o in operators(graph) if o.role is TensorRole.VOCABULARY]


def test_a_split_vocabulary_of_fixed_length_plays_as_the_reference_does() -> None:
    """Folded or not."""
    job = Job.of(graph_of(language_model, str(LENGTH)), StrategyOptions(tp=2, dp=2))
    folded = job.compiled().graph
    slow, _ = reference_events(folded)
    trace = execute(folded)

    assert trace.makespan_s == pytest.approx(execute(job.compiled(fold=False).graph).makespan_s)
    assert trace.makespan_s == pytest.approx(slow.makespan_s)


@pytest.mark.parametrize(("spread", "summed"), [(False, 0.0), (True, 64.0)])
def test_a_bias_added_to_a_sum_is_summed_only_where_positions_are_spread(
    *, spread: bool, summed: float
) -> None:
    """Without, every rank has the gradient of the whole result (Korthikanti et al. 2022, 4.2.2)."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU()]
    recording = capture_module(
        lambda: nn.Sequential(*layers), inputs=["float32[batch, seq, 64]"], sequence=32
    )
    options = StrategyOptions(tp=2, sequence_parallel=spread)
    job = Job.of(model_graph(recording), options, sequence=32)
    program = job.program()
    found = sum(
        group.elements.coefficient
        for number in program.instances
        for group in program.programs[number].parameters
        if "tp" in group.partial_axes
    )

    assert found == summed


def test_replicas_still_sum_it() -> None:
    """Each has the gradient of its own samples."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)]
    recording = capture_module(lambda: nn.Sequential(*layers), inputs=["float32[batch, 64]"])
    program = Job.of(model_graph(recording), StrategyOptions(tp=2, dp=2)).program()
    groups = [group for each in program.programs for group in each.parameters]

    assert {group.partial_axes for group in groups} == {("dp",)}
    assert sum(group.elements.coefficient for group in groups) == 2 * 64 * 256 + 256 + 64
