"""The compiled engine against its plain twin: the same trace, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.sim.reference import reference_events
from tests.strategies import execution_graphs
from wattree.graph import ExecutionGraph
from wattree.sim.engine import execute_events
from wattree.sim.rules import SHARING_POLICIES


@pytest.mark.parametrize("sharing", SHARING_POLICIES)
@settings(max_examples=300)
@given(graph=execution_graphs())
def test_engine_and_reference_agree(sharing: str, graph: ExecutionGraph) -> None:
    """Fast code is trusted because slow code that can be read gives the identical result."""
    fast, fast_events = execute_events(graph, sharing=sharing)

    slow, slow_events = reference_events(graph, sharing=sharing)

    assert fast_events.tolist() == slow_events.tolist()
    assert np.array_equal(fast.start_s, slow.start_s)
    assert np.array_equal(fast.end_s, slow.end_s)
    assert np.array_equal(fast.peak_bytes, slow.peak_bytes)
    assert np.array_equal(fast.peak_task, slow.peak_task)
    assert fast.events == slow.events


@pytest.mark.parametrize("sharing", ["max-min", "proteus"])
@settings(max_examples=30)
@given(graph=execution_graphs(max_tasks=60))
def test_engine_and_reference_agree_on_longer_graphs(sharing: str, graph: ExecutionGraph) -> None:
    """Errors in bookkeeping (lists of links, free slots) show only after a while."""
    fast, fast_events = execute_events(graph, sharing=sharing)

    slow, slow_events = reference_events(graph, sharing=sharing)

    assert fast_events.tolist() == slow_events.tolist()
    assert np.array_equal(fast.end_s, slow.end_s)
