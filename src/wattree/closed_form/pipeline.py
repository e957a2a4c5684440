"""Contents of pipeline stages, micro-batches in flight, and the bubble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.distinct import distinct
from wattree.lowering.block import ModelProgram
from wattree.lowering.costs import (
    BlockCosts,
)
from wattree.lowering.dataflow import chunk_stages, entering
from wattree.lowering.program import ComputeInstruction
from wattree.lowering.split import deferred_instructions
from wattree.lowering.stages import cut_chunks
from wattree.strategy import Schedule
from wattree.strategy.schedules import (
    PIPELINE_SCHEDULES,
    ChunkPlacement,
    live_by_chunk,
    stage_orders,
)

#: Schedules that run weight gradients apart.
SPLIT = tuple(name for name, known in PIPELINE_SCHEDULES.items() if known.splits_backward)
#: Those of them that overlap forwards with backwards.
PAIRED = ("dualpipe", "dualpipev")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContents:
    """Contents of pipeline stages; stages with the same programs are one kind.

    Attributes:
        copies: How often each chunk is held; each copy sees its share of the micro-batches.
        counts: How often each kind of stage holds each program, `(kinds, programs)`.
        parts: The same for its first chunk, the chunks between and its last chunk (a stage with
            one chunk has only a last one), `(3, kinds, programs)`.
        programs: Programs of each chunk of each kind of stage, in model order.
        later: What follows the last instance of each program in a stage, by program: backward
            has dropped it when it reaches that instance, `(kinds, programs, programs)`.
        behind: The same of the first instance.
        ahead_of_first, ahead_of_last: What comes before the first and the last instance of each
            program in a stage's first chunk, `(kinds, programs, programs)`.
        first_chunk: How often that chunk holds each program, `(kinds, programs)`.
        stages_of_kind: Stages of each kind, `(kinds,)`.
        kind_of_stage: Of each stage, `(stages,)`.
        first: First stage of each kind: under most schedules it has most in flight, `(kinds,)`.
        pools: Share of each stage's ranks in each pool, `(pools, stages)`; stages of one kind have
            the same.
        crossings: How often each tensor that a program hands on, or its gradient, goes over a
            border of chunks in either direction, over all borders on average and then over each,
            equal ones once, `(1 + borders, tensors)`; tensors of one program after those of
            another.
        boundary_copies: How many copies of each are held besides what programs keep, as `parts`,
            `(3, kinds, tensors)`.
    """

    schedule: str
    copies: int
    stages: int
    virtual: int
    counts: Floats
    parts: Floats
    programs: tuple[tuple[tuple[int, ...], ...], ...]
    later: Floats
    behind: Floats
    ahead_of_first: Floats
    ahead_of_last: Floats
    first_chunk: Floats
    stages_of_kind: Floats
    kind_of_stage: Integers
    first: Integers
    pools: Floats
    crossings: Floats
    boundary_copies: Floats


def stage_contents(
    program: ModelProgram, stages: int, schedule: Schedule, *, pools: Floats | None = None
) -> StageContents:
    """Return the contents of pipeline stages.

    Args:
        program: Blocks of the model.
        stages: Pipeline degree.
        schedule: Its name, chunks of a stage and, if given, layers of chunks.
        pools: Share of each stage's ranks in each pool, `(pools, stages)`; one pool if None.
    """
    chunks = cut_chunks(program, stages, schedule)
    placement = schedule.placed(stages)
    on_stage = np.array(
        [
            [placement.model_chunk(stage, chunk) for stage in range(stages)]
            for chunk in range(placement.chunks)
        ]
    )
    parts = _parts(_per_chunk(program, chunks)[on_stage])
    pools = np.ones((1, stages)) if pools is None else pools
    crossing, copies = _boundaries(program, chunks, placement)
    boundary_copies = _parts(copies[on_stage])
    # Stages on other pools are of other kinds, whatever they hold.
    first, kind_of_stage, many = _kinds(parts, boundary_copies, pools.T)
    kinds = parts[first]
    following = [_later(program, chunks[on_stage[-1, stage]]) for stage in first]
    ahead = [_later(program, chunks[on_stage[0, stage]][::-1]) for stage in first]
    mean = crossing.sum(axis=0) / max(len(crossing), 1)
    return StageContents(
        schedule=schedule.name_on(stages),
        copies=placement.copies,
        stages=stages,
        virtual=placement.chunks,
        counts=kinds.sum(axis=1),
        parts=np.ascontiguousarray(kinds.transpose(1, 0, 2)),
        programs=tuple(
            tuple(tuple(program.instances[i] for i in chunks[at]) for at in on_stage[:, stage])
            for stage in first
        ),
        later=np.stack([later for later, _ in following]),
        behind=np.stack([behind for _, behind in following]),
        ahead_of_first=np.stack([before for before, _ in ahead]),
        ahead_of_last=np.stack([before for _, before in ahead]),
        first_chunk=kinds[:, 0 if placement.chunks > 1 else 2],
        stages_of_kind=many.astype(np.float64),
        kind_of_stage=kind_of_stage,
        first=first,
        pools=pools,
        crossings=np.concatenate([mean[None], distinct(crossing, axis=0)]),
        boundary_copies=np.ascontiguousarray(boundary_copies[first].transpose(1, 0, 2)),
    )


def _per_chunk(program: ModelProgram, chunks: Sequence[Sequence[int]]) -> Floats:
    """Return how many blocks of each program a chunk has, `(chunks, programs)`."""
    contents = np.zeros((len(program.instances) + 1, len(program.programs)))
    contents[np.arange(1, len(contents)), program.instances] = 1.0
    ends = np.cumsum([len(chunk) for chunk in chunks])
    return np.diff(np.cumsum(contents, axis=0)[np.concatenate(([0], ends))], axis=0)


def _kinds(*rows: Floats) -> tuple[Integers, Integers, Integers]:
    """Return the first stage of each kind, the kind of each stage, and how many a kind has.

    Args:
        rows: What a stage has, `(stages, ...)` each; stages of one kind have the same.
    """
    by_stage = np.concatenate([each.reshape(len(each), -1) for each in rows], axis=1)
    _, first, kind_of_stage, many = np.unique(
        by_stage, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    return first, kind_of_stage.ravel(), many


def _parts(of_chunks: Floats) -> Floats:
    """Return the first chunk of each stage, those between, and the last, `(stages, 3, ...)`.

    A stage of one chunk has only a last one.
    """
    begin = of_chunks[0] if len(of_chunks) > 1 else np.zeros_like(of_chunks[0])
    return np.stack([begin, of_chunks[1:-1].sum(axis=0), of_chunks[-1]], axis=1)


def _boundaries(
    program: ModelProgram, chunks: Sequence[Sequence[int]], placement: ChunkPlacement
) -> tuple[Floats, Floats]:
    """Return the tensors that cross each border of chunks, and those that each chunk copies.

    What crosses is that of forward and the gradients of backward together.
    """
    names = [
        (n, name) for n, each in enumerate(program.programs) for name, _ in each.boundary_tensors
    ]
    row = {key: place for place, key in enumerate(names)}
    given = entering(program, chunks, chunk_stages(placement))
    crossing, contents = np.zeros((len(given), len(row))), np.zeros((len(chunks), len(row)))
    for border, each in enumerate(given):
        kinds = (crossing[border], each.forward), (crossing[border], each.backward)
        for counts, tensors in (*kinds, (contents[border + 1], each.copied)):
            for made in tensors:
                counts[row[program.instances[made.instance], made.tensor]] += 1.0
    return crossing, contents


def _later(program: ModelProgram, chunk: Sequence[int]) -> tuple[Floats, Floats]:
    """Return how often each program follows each program's last and first instance in a chunk.

    Of a chunk in reverse, how often it comes before the first and the last.
    """
    count = len(program.programs)
    later, behind, seen = np.zeros((count, count)), np.zeros((count, count)), np.zeros(count)
    met: set[int] = set()
    for instance in reversed(chunk):
        number = program.instances[instance]
        if number not in met:
            later[number] = seen
            met.add(number)
        behind[number] = seen
        seen[number] += 1
    return later, behind


def deferred_s(costs: BlockCosts) -> Floats:
    """Return the time of a block's weight-gradient matmuls, which can be deferred. [s]"""
    steps = costs.program.backward
    late = [i for i in deferred_instructions(steps) if isinstance(steps[i], ComputeInstruction)]
    return np.asarray((costs.backward.latency_s + costs.backward.work_s)[late].sum(axis=0))


def _in_flight_by_order(
    schedule: str, stages: Floats, virtual: Floats, stage: Integers, micro_batches: Integers
) -> Floats:
    """Return the result of `in_flight`, counted from the orders themselves.

    Twice as many micro-batches as stages and two more keep as many as any larger number does.
    """
    found = np.zeros((3, len(stages)))
    enough = np.minimum(micro_batches, 2 * stages + 2)
    alike = np.stack([stages, virtual, enough]).astype(np.int64)
    for shape in distinct(alike, axis=1).T:
        count, chunks, several = (int(each) for each in shape)
        own = (alike == shape[:, None]).all(axis=0)
        orders = stage_orders(schedule, stages=count, chunks=chunks, micro_batches=several)
        for at in distinct(stage[own]):
            live = live_by_chunk(orders[at], chunks)
            rows = own & (stage == at)
            found[0, rows] = live[0] if chunks > 1 else 0.0
            found[2, rows] = live[-1]
    return found


def in_flight(
    schedule: str,
    *,
    stages: Floats,
    virtual: Floats,
    stage: Integers,
    micro_batches: Integers,
) -> Floats:
    """Return the peak number of micro-batches with saved activations, `(3, n)`, by part of a stage.

    Interleaved stages run rounds of as many micro-batches as there are stages, or a few more,
    through one chunk after another. Backward begins when the last chunk is reached, `2 (stages -
    stage) - 1` micro-batches into its round; what goes beyond enters the first chunk again.

    Args:
        stages, virtual: Of each pipeline.
    """
    count = micro_batches.astype(np.float64)
    if schedule in {"gpipe", "breadth-first"}:
        return np.stack([count, count, count])
    if schedule in SPLIT:
        return _in_flight_by_order(schedule, stages, virtual, stage, micro_batches)
    one = np.minimum(stages - stage, count)
    if (virtual == 1).all():
        return np.stack([np.zeros_like(one), np.zeros_like(one), one])
    ahead = 2.0 * (stages - stage) - 1.0
    in_round = np.ceil(count / np.maximum(count // stages, 1.0))
    again = np.clip(ahead - in_round, 0.0, count - in_round)
    chunked = np.stack([in_round + again, in_round, np.minimum(ahead, in_round)])
    alone = np.stack([np.zeros_like(one), np.zeros_like(one), one])
    return np.where(virtual == 1, alone, chunked)
