"""Pass 5: a block's phase → tasks on streams, with pipelined collectives and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from wattree.arrays import Floats
from wattree.compiler.tasks.ledger import Item, Items, Recorder, ledgers, shifted
from wattree.compiler.tasks.table import TASK, BlockTasks, Names, TaskTable, joined
from wattree.graph import Phase, StageLabel, TaskKind
from wattree.lowering.costs import BlockCosts
from wattree.lowering.operator_classes import class_of_instruction
from wattree.lowering.overlap import Pipelining, phase_rows
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import (
    BlockProgram,
    CollectiveInstruction,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
)
from wattree.lowering.ring import rings_of
from wattree.lowering.ring_rows import Row
from wattree.lowering.split import split_backward
from wattree.lowering.streams import Stream

_Number = Callable[[str, str], int]

_PHASES = {
    InstructionPhase.FORWARD: Phase.FORWARD,
    InstructionPhase.RECOMPUTATION: Phase.RECOMPUTATION,
    InstructionPhase.INPUT_GRADIENT: Phase.BACKWARD,
    InstructionPhase.WEIGHT_GRADIENT: Phase.BACKWARD,
}


def block_tasks(
    costs: BlockCosts,
    pipelining: Pipelining,
    names: Names,
    axes_index: dict[tuple[str, ...], int],
    column: int = 0,
    *,
    items: Items,
    split: bool = False,
) -> BlockTasks:
    """Return the tasks of one block for strategy `column` of `costs`.

    Args:
        pipelining: Visible shares of collectives.
        names: Strings that tasks name by number.
        axes_index: Axes sets that collectives run over → their numbers.
        items: Tensors that the ledger names by number.
        split: Also give the backward in two pieces.
    """
    program = costs.program
    saved = costs.saved_bytes[:, column] if program.backward else 0 * costs.saved_bytes[:, column]
    table = partial(
        _table,
        pipelining=pipelining,
        names=names,
        axes_index=axes_index,
        column=column,
        number=_numbers(items, program.block),
    )
    forward = table(costs.forward, exit_instruction=program.forward_exit)
    again = table(costs.recomputation)
    backward = table(costs.backward, exit_instruction=program.backward_exit)
    _release_gathered(forward, forward)
    _release_gathered(again, backward)
    _release_gathered(backward, backward)
    cached = _take_saved(program, costs.saved_bytes, column, forward)
    _drop(program, saved, again, backward, None)
    whole = _joined(again, backward)
    if not split:
        return BlockTasks(forward=forward.closed, backward=whole, cached=cached)
    pieces = split_backward(costs.backward, program.backward_exit)
    again = table(costs.recomputation)
    inputs = table(pieces.inputs, exit_instruction=pieces.inputs_exit)
    weights = table(pieces.weights)
    _hold_gradients(inputs, weights, pieces.contents)
    _release_gathered(again, inputs)
    _release_gathered(weights, weights)
    _drop(program, saved, again, inputs, weights)
    return BlockTasks(
        forward=forward.closed,
        backward=whole,
        input_gradient=_joined(again, inputs),
        weight_gradient=_waiting(weights),
        cached=cached,
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    table: TaskTable
    rows: list[Row]
    instructions: tuple[Instruction, ...]
    number: _Number
    ledger: Recorder = field(default_factory=Recorder)

    @property
    def closed(self) -> TaskTable:
        """Return the finished table with its ledger."""
        return replace(self.table, ledger=self.ledger.ledger)


def _numbers(items: Items, block: str) -> _Number:
    """Return kind and name of a tensor of `block` → its number."""
    return lambda kind, name: items(Item("activations", kind, block, name))


def _table(
    costs: PhaseCosts,
    *,
    pipelining: Pipelining,
    names: Names,
    axes_index: dict[tuple[str, ...], int],
    column: int,
    number: _Number,
    exit_instruction: int = -1,
) -> _Phase:
    recorder = Recorder()
    ranks = {at: int(costs.ring_ranks[at, column]) for at in rings_of(costs.instructions)}
    rows = phase_rows(costs.instructions, pipelining, ranks)
    tasks = np.zeros(len(rows), TASK)
    tasks["axes"] = -1
    edges, entries = [], []
    completes = -1
    first_compute = True
    for index, row in enumerate(rows):
        instruction, task = costs.instructions[row.instruction], tasks[index]
        at = row.instruction, column
        task["stream"] = row.stream
        task["name"] = names(instruction.path)
        task["operator_class"] = class_of_instruction(instruction)
        task["phase"] = _PHASES[instruction.phase]
        task["work_s"] = row.work_s(costs.work_s, costs.processor_s)[column]
        edges += [(before, index) for before in row.depends]
        if isinstance(instruction, CollectiveInstruction):
            task["axes"] = axes_index.setdefault(instruction.axes, len(axes_index))
            _set_collective(task, row, costs, at)
            kind, begins, ends = "gathered", not row.hidden, False
        else:
            _set_compute(task, row, costs, at)
            kind, begins, ends = "temporary", row.begins, row.ends
        size = float(costs.transient_bytes[at])
        if begins:
            task["alloc_bytes"] = size
            recorder.take(index, number(kind, instruction.path), size)
        if ends:
            task["free_bytes"] = size
            recorder.give(index, number(kind, instruction.path), size)
        waits = instruction.reads_block_input if row.entry is None else row.entry
        if waits and (row.stream != Stream.COMPUTE or first_compute):
            entries.append(index)
        if row.stream == Stream.COMPUTE:
            first_compute = False
        if row.instruction == exit_instruction and not row.hidden:
            completes = index
    table = TaskTable(
        tasks=tasks,
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        entries=tuple(entries),
        exit=completes,
    )
    return _Phase(table, rows, costs.instructions, number, recorder)


def _set_collective(task: np.void, row: Row, costs: PhaseCosts, at: tuple[int, int]) -> None:
    """Set the cost of a collective, in place; `at`: its instruction and the strategy."""
    task["kind"] = TaskKind.COLLECTIVE
    task["stage"] = StageLabel.COMMUNICATING
    task["latency_s"] = row.latency_share * costs.latency_s[at]
    task["scale_up_bytes"] = row.share * costs.scale_up_bytes[at]
    task["adapter_bytes"] = row.share * costs.adapter_bytes[at]
    task["uplink_bytes"] = row.share * costs.uplink_bytes[at]
    task["in_turn"] = costs.in_turn[at] > 0
    task["wire_bytes"] = row.share * costs.wire_bytes[at]


def _set_compute(task: np.void, row: Row, costs: PhaseCosts, at: tuple[int, int]) -> None:
    task["kind"] = TaskKind.COMPUTE
    task["stage"] = StageLabel.COMPUTING
    task["flop"] = row.share * costs.flop[at]
    task["traffic_bytes"] = row.share * costs.traffic_bytes[at]


def _release_gathered(phase: _Phase, until: _Phase) -> None:
    """Keep gathered activations live to the end of the phase that uses them, in place."""
    moved = phase.table.tasks["kind"] == TaskKind.COLLECTIVE
    contents = phase.table.tasks["alloc_bytes"][moved].sum()
    last = until if len(until.rows) else phase
    if contents and len(last.rows):
        last.table.tasks["free_bytes"][-1] += contents
        _give_gathered(phase, last, np.flatnonzero(moved).tolist())


def _give_gathered(phase: _Phase, until: _Phase, gathers: Iterable[int]) -> None:
    """Record that the last task of `until` frees what `gathers` of a phase allocated."""
    for task in gathers:
        path = phase.instructions[phase.rows[task].instruction].path
        size = float(phase.table.tasks["alloc_bytes"][task])
        until.ledger.give(len(until.rows) - 1, phase.number("gathered", path), size)


def _take_saved(
    program: BlockProgram, saved: Floats, column: int, forward: _Phase
) -> tuple[tuple[int, float], ...]:
    """Add the tensors that forward saves for backward to its tasks' allocations, in place.

    Returned are item and bytes of what lasts until the end of the chunk's forward pass.

    An uneven exchange is one task for ranks that keep more and ranks that keep less of what it
    brings: all take with it what the least of them keeps, and the rest with their next computation.

    Args:
        saved: Bytes of each tensor kept, `(tensors, columns)`. [B]
    """
    if not program.backward:
        return ()
    cached: list[tuple[int, float]] = []
    made = {row.instruction: i for i, row in enumerate(forward.rows) if not row.hidden}
    for tensor, sizes in zip(program.saved, saved, strict=True):
        size = sizes[column]
        if size == 0.0:
            continue
        kept = 1.0 - tensor.share if tensor.recomputed else 1.0
        at, item = made.get(tensor.producer, 0), forward.number("saved", tensor.name)
        shared = size
        if _is_uneven(forward, at):
            shared = sizes.min()
            later = _next_compute(forward, at)
            forward.table.tasks["alloc_bytes"][later] += kept * (size - shared)
            forward.ledger.take(later, item, kept * (size - shared), tensors=0)
        forward.table.tasks["alloc_bytes"][at] += kept * shared
        forward.ledger.take(at, item, kept * shared)
        if tensor.cached and kept < 1.0:
            cached.append((forward.number("temporary", tensor.name), (1.0 - kept) * size))
            forward.table.tasks["alloc_bytes"][at] += cached[-1][1]
            forward.ledger.take(at, *cached[-1])
    return tuple(cached)


def _is_uneven(phase: _Phase, at: int) -> bool:
    instruction = phase.instructions[phase.rows[at].instruction]
    return isinstance(instruction, CollectiveInstruction) and instruction.uneven


def _next_compute(phase: _Phase, at: int) -> int:
    """Return the first row of computation after row `at`, which reads the exchange's result.

    The last one before it where the exchange ends the block.
    """
    order: tuple[int, ...] = (*range(at + 1, len(phase.rows)), *reversed(range(at)))
    return next(
        i
        for i in order
        if isinstance(phase.instructions[phase.rows[i].instruction], ComputeInstruction)
    )


def _drop(
    program: BlockProgram,
    saved: Floats,
    again: _Phase,
    backward: _Phase,
    weights: _Phase | None,
) -> None:
    """Free saved or recomputed tensors with the last task that needs them, in place.

    Args:
        saved: Bytes of each tensor kept. [B]
        backward: The whole backward, or the part of it that goes first.
        weights: The part that waits, if the backward is split.
    """
    last = len(backward.rows) - 1
    if last < 0:
        return
    freed = _compute_rows(backward)
    late = {} if weights is None else _compute_rows(weights)
    for tensor, size in zip(program.saved, saved, strict=True):
        if size == 0.0:
            continue
        item = backward.number("saved", tensor.name)
        if tensor.recomputed:
            target = again if len(again.rows) else backward
            target.table.tasks["alloc_bytes"][0] += tensor.share * size
            target.ledger.take(0, item, tensor.share * size, tensors=int(tensor.share == 1.0))
        waiting = [late[path] for path in tensor.savers if path in late]
        until, at = backward, freed.get(tensor.consumer, last)
        if weights is not None and waiting:
            until, at = weights, max(waiting)
        until.table.tasks["free_bytes"][at] += size
        until.ledger.give(at, item, size)


def _compute_rows(phase: _Phase) -> dict[str, int]:
    """Return operator path → its last compute task of a phase."""
    return {
        phase.instructions[row.instruction].path: index
        for index, row in enumerate(phase.rows)
        if isinstance(phase.instructions[row.instruction], ComputeInstruction)
    }


def _hold_gradients(
    inputs: _Phase, weights: _Phase, contents: Mapping[int, tuple[int, ...]]
) -> None:
    """Keep the gradient that reaches a matmul until its weight's gradient is computed, in place.

    In a whole backward it is the temporary of the product. Here it is taken with the input's
    gradient; where it was gathered for that, the gathered copy is what stays.

    Args:
        inputs: What goes first.
        contents: Step of `weights` → collectives of `inputs` whose results it reads.
    """
    gathers = {row.instruction: i for i, row in enumerate(inputs.rows) if not row.hidden}
    matmuls = _compute_rows(inputs)
    tasks = inputs.table.tasks
    kept: set[int] = set()
    for index, row in enumerate(weights.rows):
        if not isinstance(weights.instructions[row.instruction], ComputeInstruction):
            continue
        weight = weights.table.tasks[index]
        size = float(weight["alloc_bytes"])
        weight["alloc_bytes"] = weight["free_bytes"] = 0.0
        path = weights.instructions[row.instruction].path
        weights.ledger.drop(index, weights.number("temporary", path))
        copies = [gathers[instruction] for instruction in contents[row.instruction]]
        gathered = [at for at in copies if tasks["alloc_bytes"][at] > 0 and at not in kept]
        if gathered:
            kept.update(gathered)
            weight["free_bytes"] += tasks["alloc_bytes"][gathered].sum()
            for at in gathered:
                gather = inputs.instructions[inputs.rows[at].instruction].path
                held_bytes = float(tasks["alloc_bytes"][at])
                weights.ledger.give(index, inputs.number("gathered", gather), held_bytes)
        elif not any(at in kept for at in copies):
            at = matmuls.get(path, 0)
            tasks["alloc_bytes"][at] += size
            weight["free_bytes"] += size
            inputs.ledger.take(at, inputs.number("deferred", path), size)
            weights.ledger.give(index, inputs.number("deferred", path), size)
    moved = tasks["kind"] == TaskKind.COLLECTIVE
    released = tasks["alloc_bytes"][moved].sum() - tasks["alloc_bytes"][list(kept)].sum()
    if len(tasks):
        tasks["free_bytes"][-1] += released
        _give_gathered(
            inputs, inputs, [at for at in np.flatnonzero(moved).tolist() if at not in kept]
        )


def _waiting(weights: _Phase) -> TaskTable:
    """Return the table of deferred work: its first collectives start at its turn."""
    first = tuple(
        index
        for index, row in enumerate(weights.rows)
        if row.stream != Stream.COMPUTE and not row.depends
    )
    table = weights.closed
    return TaskTable(tasks=table.tasks, edges=table.edges, entries=first, ledger=table.ledger)


def _joined(again: _Phase, backward: _Phase) -> TaskTable:
    """Put recomputation before backward: it starts when the gradient arrives."""
    shift = len(again.rows)
    if shift == 0:
        return backward.closed
    tasks = joined([again.table.tasks, backward.table.tasks])
    edges = [again.table.edges, backward.table.edges + shift]
    if len(backward.rows):
        first = next((i for i, row in enumerate(backward.rows) if row.stream == Stream.COMPUTE), 0)
        ends = {row.stream: i for i, row in enumerate(again.rows)}
        edges.append(np.array([(end, first + shift) for end in ends.values()], dtype=np.int64))
    exit_task = backward.table.exit + shift if backward.table.exit >= 0 else -1
    return TaskTable(
        tasks=tasks,
        edges=np.concatenate(edges),
        entries=(
            0,
            *(i for i, row in enumerate(again.rows) if i and row.entry),
            *(entry + shift for entry in backward.table.entries),
        ),
        exit=exit_task,
        ledger=ledgers([again.ledger.ledger, shifted(backward.ledger.ledger, shift)]),
    )
