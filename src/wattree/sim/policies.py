"""Prepares a graph for a sharing policy, so that the kernels are independent of policies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wattree.arrays import Floats
from wattree.errors import UnknownNameError
from wattree.graph import ExecutionGraph
from wattree.sim.rules import SHARING_POLICIES


def check_sharing(sharing: str) -> None:
    """Reject an unknown sharing policy.

    Raises:
        UnknownNameError: There is no such policy.
    """
    if sharing not in SHARING_POLICIES:
        raise UnknownNameError(kind="sharing policy", name=sharing, known=SHARING_POLICIES)


def without_slowdown(graph: ExecutionGraph) -> ExecutionGraph:
    """Return a graph in which computation and communication do not slow each other."""
    return replace(
        graph, compute_rate_while_communicating=1.0, communication_rate_while_computing=1.0
    )


def whole_flows(counts: Floats) -> Floats:
    """Return the numbers of flows as integers: zero, or at least one."""
    return np.where(counts > 0, np.maximum(np.rint(counts), 1.0), 0.0)


def flows_under(graph: ExecutionGraph, sharing: str) -> ExecutionGraph:
    """Return a graph with the flows and links that a sharing policy uses.

    Under `none` there are none. Under `proteus` every flow asks for as much of each of its links
    as it counts, and every link has room for one: to slow all flows of a link by the factor by
    which it is asked for too much is then to divide by their number.
    """
    if sharing == "none":
        return replace(
            graph,
            flow_offsets=np.zeros_like(graph.flow_offsets),
            flow_links=graph.flow_links[:0],
            flow_bytes_per_s=graph.flow_bytes_per_s[:0],
            flow_counts=None,
            flow_largest_bytes_per_s=None,
        )
    if sharing == "proteus":
        rates = graph.flow_bytes_per_s
        counts = (
            np.ones(len(rates)) if graph.flow_counts is None else whole_flows(graph.flow_counts)
        )
        return replace(
            graph,
            flow_bytes_per_s=np.where(rates > 0.0, counts, 0.0),
            link_bandwidth_bytes_per_s=np.ones(len(graph.link_bandwidth_bytes_per_s)),
        )
    return graph
