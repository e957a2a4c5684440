"""Pass 7b: tensors that cross the boundaries of pipeline chunks, and copies of them.

All tensors live at a cut go to the next chunk, and their gradients come back. A tensor that the
first block of a chunk reads is saved by the operator that needs it, as elsewhere. A tensor that
only passes by is not saved by a block: a chunk in which no block saves it holds a copy, from
its arrival to the end of the chunk's backward, as a runtime that forwards it and waits for its
gradient does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattree.graph import BlockDataflow, Made
from wattree.lowering.block import ModelProgram, dataflow_of, trained_from
from wattree.lowering.costs import BlockCosts
from wattree.lowering.program import BlockProgram, SavedTensor
from wattree.strategy.schedules import ChunkPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class Entering:
    """Tensors that one chunk receives from the one before.

    Attributes:
        forward: Tensors that it gets.
        backward: Those whose gradients it sends back.
        copied: Tensors of which it holds a copy besides those that its blocks save.
    """

    forward: tuple[Made, ...]
    backward: tuple[Made, ...]
    copied: tuple[Made, ...]


def chunk_stages(placement: ChunkPlacement) -> tuple[int, ...]:
    """Return the stage of each chunk, in model order."""
    return tuple(place.stage for place in placement.routes[0])


def entering(
    program: ModelProgram, chunks: Sequence[Sequence[int]], stages: Sequence[int]
) -> tuple[Entering, ...]:
    """Return the tensors that each chunk but the first receives.

    Args:
        chunks: Block instances of each chunk, in model order.
        stages: Stage of each chunk; a tensor from the same stage needs no copy.
    """
    if len(chunks) < 2:
        return ()
    model = program.model
    dataflow = dataflow_of(model)
    live = dataflow.live_at([chunk[0] for chunk in chunks[1:]])
    first_trained = trained_from(model)
    return tuple(
        Entering(
            forward=given,
            backward=tuple(made for made in given if made.instance >= first_trained),
            copied=()
            if stages[number] == stages[number - 1]
            else _copied(
                program, dataflow, chunks[number], [m for m in given if m.instance >= first_trained]
            ),
        )
        for number, given in enumerate(live, start=1)
    )


def _copied(
    program: ModelProgram, dataflow: BlockDataflow, chunk: Sequence[int], given: Sequence[Made]
) -> tuple[Made, ...]:
    if len(given) < 2 or not _of(program, chunk[0]).backward:
        return ()
    model = program.model
    own = set(dataflow.sources[chunk[0]][:1])
    for number in chunk:
        saved = {tensor.name for tensor in _of(program, number).saved}
        inputs = model.blocks[model.instances[number].block].inputs
        sources = zip(inputs, dataflow.sources[number], strict=True)
        own |= {made for tensor, made in sources if tensor.name in saved}
    return tuple(made for made in given if made not in own)


def _of(program: ModelProgram, instance: int) -> BlockProgram:
    return program.programs[program.instances[instance]]


def entering_bytes(
    given: Sequence[Entering], program: ModelProgram, costs: Sequence[BlockCosts]
) -> list[tuple[float, float]]:
    """Return the bytes that cross into each chunk but the first and back, per micro-batch. [B]

    Args:
        given: From `entering`.
        costs: Of its programs; their first column counts.
    """

    def size(tensors: Sequence[Made]) -> float:
        total = 0.0
        for made in tensors:
            number = program.instances[made.instance]
            row = list(dict(program.programs[number].boundary_tensors)).index(made.tensor)
            total += float(costs[number].boundary_bytes[row, 0])
        return total

    return [(size(each.forward), size(each.backward)) for each in given]


def with_boundary_copies(
    program: ModelProgram, chunks: Sequence[Sequence[int]], stages: Sequence[int]
) -> ModelProgram:
    """Return the program with boundary copies, each saved by its chunk's first block.

    Args:
        chunks: Block instances of each chunk, in model order.
        stages: Stage of each chunk.
    """
    programs, instances = list(program.programs), list(program.instances)
    layouts = list(program.layouts)
    known: dict[tuple[object, ...], int] = {}
    for chunk, given in zip(chunks[1:], entering(program, chunks, stages), strict=True):
        if not given.copied:
            continue
        first = program.instances[chunk[0]]
        copies = tuple(
            SavedTensor(
                name=f"received.{program.model.instances[made.instance].path}.{made.tensor}",
                size=dict(_of(program, made.instance).boundary_tensors)[made.tensor],
                producer=-1,
                consumer="",
            )
            for made in given.copied
        )
        if (first, copies) not in known:
            own = program.programs[first]
            known[first, copies] = len(programs)
            programs.append(replace(own, saved=(*own.saved, *copies)))
            layouts.append(program.layouts[first])
        instances[chunk[0]] = known[first, copies]
    return replace(
        program,
        programs=tuple(programs),
        instances=tuple(instances),
        layouts=tuple(layouts),
    )
