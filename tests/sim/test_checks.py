"""The quick check of a graph finds what the thorough one explains."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.jobs import Job, dense
from wattree.errors import SimulationError
from wattree.graph import ExecutionGraph, TaskKind
from wattree.sim.checks import check_graph
from wattree.strategy import StrategyOptions


@pytest.fixture(scope="module")
def graph() -> ExecutionGraph:
    """A sound graph of two stages with collectives, every rank executed."""
    return Job.of(dense(2), StrategyOptions(dp=2, pp=2, tp=2)).compiled(fold=False).graph


BAD_IDS = {"kind": len(TaskKind), "stream_ids": 10**9, "successors": 10**9, "flow_links": 10**9}
NUMBERS = ("latency_s", "work_s", "alloc_bytes", "free_bytes", "flow_bytes_per_s")


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, most in BAD_IDS.items() for value in (-1, most)]
    + [(name, value) for name in NUMBERS for value in (-1e-300, np.inf, -np.inf, np.nan)],
)
def test_one_bad_value_is_found_and_named(
    graph: ExecutionGraph, name: str, value: float, place: int
) -> None:
    """The first or the last value is enough."""
    values = getattr(graph, name).copy()
    values[place] = value

    with pytest.raises(SimulationError, match=name):
        check_graph(replace(graph, **{name: values}))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1.7e308])
def test_every_finite_number_from_zero_on_is_fine(
    graph: ExecutionGraph, name: str, value: float
) -> None:
    """Minus zero is zero; the least and the largest numbers are numbers."""
    values = getattr(graph, name).copy()
    values[0] = value

    check_graph(replace(graph, **{name: values}))


@pytest.mark.parametrize("name", ["stream_offsets", "successor_offsets", "flow_offsets"])
@pytest.mark.parametrize("place", [0, 5, -1])
def test_offsets_that_fall_are_found(graph: ExecutionGraph, name: str, place: int) -> None:
    """Rows must cover the values from end to end."""
    values = getattr(graph, name).copy()
    values[place] = 10**6 if place == 5 else values[place] - 1

    with pytest.raises(SimulationError, match=name):
        check_graph(replace(graph, **{name: values}))


def test_streams_out_of_order_are_found(graph: ExecutionGraph) -> None:
    """The message names the task."""
    shared = int(np.flatnonzero(np.diff(graph.stream_offsets) > 1)[0])
    row = slice(graph.stream_offsets[shared], graph.stream_offsets[shared + 1])
    values = graph.stream_ids.copy()
    values[row] = values[row][::-1]

    with pytest.raises(SimulationError, match=f"task {shared}: its streams must be ascending"):
        check_graph(replace(graph, stream_ids=values))


def test_compute_that_uses_links_is_found(graph: ExecutionGraph) -> None:
    """The message names the task."""
    task = int(np.flatnonzero(np.diff(graph.flow_offsets) > 0)[0])
    kinds = graph.kind.copy()
    kinds[task] = TaskKind.HOST

    with pytest.raises(SimulationError, match=f"task {task}: only collectives"):
        check_graph(replace(graph, kind=kinds))
