"""Steps one after another: any graph, repeated, is so many times itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import execution_graphs
from wattree.graph import ExecutionGraph, JobTasks, TaskKind, repeated
from wattree.sim import execute


def whole(graph: ExecutionGraph) -> JobTasks:
    """Return a graph as its only job."""
    return JobTasks(tasks=slice(0, graph.tasks), classes=slice(0, len(graph.class_ranks)))


@given(graph=execution_graphs(), steps=st.integers(1, 4), late_s=st.sampled_from([0.0, 1.5]))
def test_repeated_steps_take_so_many_times_as_long(
    graph: ExecutionGraph, steps: int, late_s: float
) -> None:
    """Each step begins when the one before has ended, and is executed like it."""
    assume(graph.tasks > 0)
    alone = execute(graph)
    made = repeated(graph, [whole(graph)], [steps])

    trace = execute(made.late_by([late_s]))

    for step in range(steps):
        begin_s = trace.end_s[made.gates[0][step]]
        assert begin_s == pytest.approx(late_s + step * alone.makespan_s, rel=1e-9, abs=1e-9)
        lasts_s = trace.end_s[made.step(0, step)].max() - begin_s
        assert lasts_s == pytest.approx(alone.makespan_s, rel=1e-9, abs=1e-9)


@given(graph=execution_graphs())
def test_a_step_is_a_copy_of_the_graph_behind_its_gate(graph: ExecutionGraph) -> None:
    """Columns, streams and flows of every copy are those of the original."""
    made = repeated(graph, [whole(graph)], [3])

    assert made.graph.tasks == 3 * (graph.tasks + 1)
    assert (made.graph.kind[made.gates[0]] == TaskKind.HOST).all()
    for step in range(3):
        tasks = made.step(0, step)
        assert np.array_equal(made.graph.work_s[tasks], graph.work_s)
        streams = slice(*made.graph.stream_offsets[[tasks.start, tasks.stop]])
        assert np.array_equal(made.graph.stream_ids[streams], graph.stream_ids)
        flows = slice(*made.graph.flow_offsets[[tasks.start, tasks.stop]])
        assert np.array_equal(made.graph.flow_bytes_per_s[flows], graph.flow_bytes_per_s)
