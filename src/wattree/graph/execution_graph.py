"""The tasks of all ranks in one step, as arrays. The compiler fills them; the executor runs them.

Rules of play (both executors follow them to the letter):

1. A task occupies every stream it lists. Tasks of a stream run one at a time, in increasing task
   id. A task starts at the moment when all its predecessors have ended and it is the first
   unfinished task on each of its streams.
2. A task first takes `latency_s` (nothing shares or slows it), then `work_s`, which is its time
   when alone. Its work progresses at a *rate* between 0 and 1. A task with neither ends at once.
   What is left of the work is computed anew only when the rate changes: an unchanged rate leaves
   the end as it is, to the last bit. HOST tasks always work at rate 1.
3. Rate of a COMPUTE task: `compute_rate_while_communicating` while at least one overlapping
   communication task is in its work phase on the same rank class, else 1.
4. Rate of a communication task (COLLECTIVE, TRANSFER) is its max-min fair share of the links it
   uses, times `communication_rate_while_computing` while at least one of its rank classes has a
   COMPUTE task in its work phase and the task is marked `overlaps`. Tasks of other kinds have no
   flows. A flow uses `flow_bytes_per_s` on each of its links at rate 1; a link on which that is 0
   is none of its links. A flow without links has share 1.
   Only *crowded* links restrict: those whose flows together would use more than the bandwidth at
   rate 1 (by more than one part in 10^9: flows meant to fill a link exactly may round above it).
   Fair shares come from progressive filling: every flow's busiest-link bandwidth grows at equal
   speed until a crowded link it uses is full (then it is frozen) or its rate is 1. A flow that
   stands for several (`flow_counts`) grows as each of them would: the bandwidth of one counts.
   A link's total never exceeds its bandwidth (but for that rounding).
   Two other sharing policies exist, for comparison. Under `none` no link is ever
   contended: all shares are 1. Under `proteus` rules 3 and 4 are those that were published for the
   Proteus executor: a flow's share is 1 over the number of flows on the most loaded of its links,
   however much they ask for (`flow_counts`; 1 if there are none); and overlap slows whole tasks,
   as follows. At the end of the first instant at which a COMPUTE task finds a partner as rule 3
   wants it, or a communication task one as rule 4 wants it, what is left of its work is computed,
   and `work_s * (1 / rate - 1)` is added to it, with the rate of rule 3 or the factor of rule 4.
   That happens once to a task and stays when the partner leaves; a rate of 1 changes nothing.
   Sources, and what the published program does otherwise: docs/executor.md.
5. Simultaneous events are ordered by (time, priority, sequence): ends, then begins of work after
   a latency, then starts; among each, increasing task id. What an event causes at its own instant
   takes its place in that order. Rates are recomputed once after everything at an instant has
   happened; should a task end at that same instant because of it, the instant goes on.
6. `alloc_bytes` is added to each of the task's rank classes (once, however many of their streams
   it occupies) at its start and `free_bytes` taken away at its end. The peak is the highest level
   ever seen, starts counted before ends only if they come first by rule 5; of equal levels the
   first counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np

from wattree.arrays import Flags, Floats, Integers, NDArray


class TaskKind(IntEnum):
    """How a task's time and rate behave."""

    COMPUTE = 0
    COLLECTIVE = 1
    TRANSFER = 2  # point-to-point between ranks, or a copy between host and device
    HOST = 3  # work of the host: fixed time, never slowed


class StreamKind(IntEnum):
    """Content of a stream; for display and exposure accounting."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    HOST = 3
    STORAGE = 4


class Phase(IntEnum):
    """Which part of a training step a task belongs to."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTATION = 2
    OPTIMIZER = 3
    MATERIALS = 4
    SYNCHRONIZATION = 5  # gradients and parameters between replicas
    PREFETCH = 6  # input of later steps, concurrent with this one, which ends no earlier


class StageLabel(IntEnum):
    """The three stages of MC²."""

    MATERIALS = 0
    COMPUTING = 1
    COMMUNICATING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionGraph:
    """Tasks of all rank classes in one step.

    Shapes: `T` tasks, `S` streams, `C` rank classes, `L` link classes, `E` edges; CSR arrays have
    one more offset than rows.

    Attributes:
        kind: `TaskKind`, shape `(T,)`, int8.
        latency_s: Fixed time before the work, shape `(T,)`. [s]
        work_s: Time of the work when alone, shape `(T,)`. [s]
        stream_offsets, stream_ids: CSR: streams of each task, ascending.
        successor_offsets, successors: CSR: tasks that wait for each task.
        flow_offsets, flow_links, flow_bytes_per_s: CSR: link classes each task's work uses and
            the bandwidth it takes there at rate 1, all folded twins together. [B/s]
        flow_counts: For each entry of `flow_links`, how many flows it stands for there: groups,
            or pairs of ranks, that are folded into the task and use one such link; 0 for what is
            no flow of its own. None: one each.
        flow_largest_bytes_per_s: The bandwidth of the largest of those. None: all are equal. [B/s]
        overlaps: Communication that slows, and is slowed by, compute of its ranks, `(T,)` bool.
        alloc_bytes, free_bytes: Memory taken at start, returned at end, `(T,)`. [B]
        stream_class: Rank class of each stream, `(S,)`.
        stream_kind: `StreamKind`, `(S,)`, int8.
        class_ranks: Ranks folded into each class, `(C,)`.
        class_names: One name per class, for people.
        static_bytes: Memory held for the whole step, `(C,)`. [B]
        link_bandwidth_bytes_per_s: `(L,)`. [B/s]
        link_names: One name per link class.
        compute_rate_while_communicating, communication_rate_while_computing: In (0, 1].
        name_ids, names: What each task is: `names[name_ids[t]]`.
        phase, stage, micro_batch: `Phase`, `StageLabel` and micro-batch (-1: none), `(T,)`.
        flop: Matrix FLOP a task executes on one rank, `(T,)`.
        memory_traffic_bytes: Device-memory bytes it moves on one rank, `(T,)`. [B]
        link_traffic_bytes: Bytes it sends over links from one rank, `(T,)`. [B]
        memory_category: Index into `category_names` of what alloc/free hold, `(T,)`.
        category_names: Memory categories.
        static_by_category: `(C, categories)`. [B]
        operator_class: `OperatorClass` of each task, `(T,)`; None where it is unknown.
    """

    kind: NDArray[np.int8]
    latency_s: Floats
    work_s: Floats
    stream_offsets: Integers
    stream_ids: Integers
    successor_offsets: Integers
    successors: Integers
    flow_offsets: Integers
    flow_links: Integers
    flow_bytes_per_s: Floats
    overlaps: Flags
    alloc_bytes: Floats
    free_bytes: Floats
    stream_class: Integers
    stream_kind: NDArray[np.int8]
    class_ranks: Integers
    class_names: tuple[str, ...]
    static_bytes: Floats
    link_bandwidth_bytes_per_s: Floats
    link_names: tuple[str, ...]
    compute_rate_while_communicating: float
    communication_rate_while_computing: float
    name_ids: Integers
    names: tuple[str, ...]
    phase: NDArray[np.int8]
    stage: NDArray[np.int8]
    micro_batch: Integers
    flop: Floats
    memory_traffic_bytes: Floats
    link_traffic_bytes: Floats
    memory_category: NDArray[np.int8]
    category_names: tuple[str, ...]
    static_by_category: Floats
    flow_counts: Floats | None = None
    flow_largest_bytes_per_s: Floats | None = None
    operator_class: NDArray[np.int8] | None = None

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.kind)

    @property
    def ranks(self) -> int:
        """Number of ranks that the classes stand for."""
        return int(self.class_ranks.sum())

    def equal(self, other: ExecutionGraph) -> bool:
        """Return whether both graphs are the same, field by field."""

        def same(left: Any, right: Any) -> bool:
            return bool(np.array_equal(left, right))

        return all(same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
