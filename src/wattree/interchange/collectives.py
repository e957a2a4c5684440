"""Which collective a task is, and how its size is counted in a Chakra trace.

Chakra's `comm_size` is what each rank puts in: the whole buffer of an all-reduce, reduce-scatter or
all-to-all, but only the rank's own shard of an all-gather (ASTRA-sim, `Ring.cc`). Wattree's graphs
hold what a rank sends over links instead; the volume factors of the ring algorithms join both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from wattree.arrays import Integers
from wattree.compiler import Compilation
from wattree.graph import ExecutionGraph, Phase, TaskKind
from wattree.graph.volume import volume_factor
from wattree.interchange.schema import CollectiveType
from wattree.lowering.program import CollectiveInstruction

_TYPES = {
    "all_reduce": CollectiveType.ALL_REDUCE,
    "all_gather": CollectiveType.ALL_GATHER,
    "reduce_scatter": CollectiveType.REDUCE_SCATTER,
    "all_to_all": CollectiveType.ALL_TO_ALL,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
#: Blocks passed round a ring, a turn each: the schema knows no such exchange, and what neighbours
#: send each other in it is what they send in these by their ring algorithms.
_AROUND = {
    "ring_gather": CollectiveType.ALL_GATHER,
    "ring_reduce": CollectiveType.REDUCE_SCATTER,
}
#: Names of traffic between replicas (wattree.compiler.tasks.chunk).
_GATHERS = ("parameters.gather", "parameters.update")
_REDUCTION = "gradients.reduce"


def chakra_size_bytes(kind: CollectiveType, sent: float, ranks: int) -> int:
    """Return `comm_size` of a collective in which each of `ranks` sends `sent` bytes. [B]

    At least 1: readers divide by it, and a collective that moves nothing still synchronizes.
    """
    if ranks < 2:
        return max(round(sent), 1)
    whole = sent / volume_factor(_NAMES[kind], ranks)
    share = ranks if kind is CollectiveType.ALL_GATHER else 1
    return max(round(whole / share), 1)


def sent_bytes(kind: CollectiveType, size_bytes: int, ranks: int) -> float:
    """Return what each of `ranks` sends in a collective of `comm_size` bytes. [B]

    A ring sends a broadcast's or a reduction's buffer on once; a gather or scatter moves one shard
    per rank through the root, the busiest.
    """
    if ranks < 2 or kind is CollectiveType.BARRIER:
        return 0.0
    if kind in {CollectiveType.BROADCAST, CollectiveType.REDUCE}:
        return float(size_bytes)
    if kind in {CollectiveType.GATHER, CollectiveType.SCATTER, CollectiveType.ALL_GATHER}:
        return float(size_bytes) * (ranks - 1)
    name = "reduce_scatter" if kind is CollectiveType.REDUCE_SCATTER_BLOCK else _NAMES[kind]
    return size_bytes * volume_factor(name, ranks)


def members_of(graph: ExecutionGraph, task: int) -> tuple[int, ...]:
    """Return the rank classes that take part in a task, ascending."""
    streams = graph.stream_ids[graph.stream_offsets[task] : graph.stream_offsets[task + 1]]
    return tuple(sorted(set(graph.stream_class[streams].tolist())))


def collective_types(compilation: Compilation, members: Sequence[tuple[int, ...]]) -> Integers:
    """Return the `CollectiveType` of each task of a compiled job, -1 where it is none.

    Inside blocks the compiled steps say it. Between replicas the name does, but for reductions
    of gradients: those over ranks that also gather parameters are reduce-scatters, because whoever
    keeps a shard of the parameters or of the optimizer receives a shard of the gradients.

    Args:
        compilation: Of an unfolded job.
        members: Ranks of each task.
    """
    graph = compilation.graph
    steps = _block_collectives(compilation)
    found = np.full(graph.tasks, -1)
    names = [graph.names[index] for index in graph.name_ids.tolist()]
    tasks = np.flatnonzero(graph.kind == TaskKind.COLLECTIVE).tolist()
    gathering = {members[task] for task in tasks if names[task] in _GATHERS}
    for task in tasks:
        if names[task] in _GATHERS:
            found[task] = CollectiveType.ALL_GATHER
        elif names[task] == _REDUCTION:
            scatters = members[task] in gathering
            found[task] = CollectiveType.REDUCE_SCATTER if scatters else CollectiveType.ALL_REDUCE
        else:
            key = names[task], int(graph.phase[task]), len(members[task])
            found[task] = _chosen(steps[key], float(graph.link_traffic_bytes[task]))
    return found


def _chosen(candidates: list[tuple[CollectiveType, float]], sent: float) -> CollectiveType:
    """Return the kind of the step that sends as much, or of the first if it was cut in two."""
    assert candidates, "a collective of the graph is a step of a block"
    exact = [kind for kind, step_sent in candidates if step_sent == sent]
    return exact[0] if exact else candidates[0][0]


def _block_collectives(
    compilation: Compilation,
) -> dict[tuple[str, int, int], list[tuple[CollectiveType, float]]]:
    """Return (name, phase, ranks) → kinds of collectives and what each rank sends in them."""
    found: dict[tuple[str, int, int], list[tuple[CollectiveType, float]]] = defaultdict(list)
    mesh = compilation.topology.mesh
    for step, phase, sent in _steps(compilation):
        key = step.path, int(phase), mesh.size(step.axes)
        found[key].append(((_TYPES | _AROUND)[step.kind.value], sent))
    return found


def _steps(compilation: Compilation) -> Iterator[tuple[CollectiveInstruction, Phase, float]]:
    for costs in compilation.costs:
        for part, phase in (
            (costs.forward, Phase.FORWARD),
            (costs.recomputation, Phase.RECOMPUTATION),
            (costs.backward, Phase.BACKWARD),
        ):
            for index, instruction in enumerate(part.instructions):
                if isinstance(instruction, CollectiveInstruction):
                    yield instruction, phase, float(part.wire_bytes[index, 0])
