"""Memory of one block in closed form: saved tensors and temporary memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.lowering.costs import BlockCosts
from wattree.lowering.phase_costs import PhaseCosts
from wattree.lowering.program import CollectiveInstruction, ComputeInstruction, Scale
from wattree.lowering.split import SplitBackward, split_backward
from wattree.lowering.storage import Storage


def block_memory(costs: BlockCosts) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the saved bytes of one block, and what its forward and backward need beyond. [B]

    And what forward caches until the forward pass ends.
    """
    saved, again, cached, made = _kept(costs)
    forward = np.maximum(_peak([costs.forward], made, {}) - saved - cached, 0.0)
    if not costs.program.backward:
        return saved, forward, np.zeros_like(saved), cached
    return saved, forward, _backward_peak(costs, again), cached


def _kept(costs: BlockCosts) -> tuple[Floats, Floats, Floats, dict[int, Floats]]:
    """Return saved, recomputed and cached bytes of a block, and those that instructions make. [B]

    Of what is recomputed, forward makes what is cached.
    """
    program = costs.program
    saved = again = cached = zero = np.zeros(costs.saved_bytes.shape[1])
    made: dict[int, Floats] = {}  # forward instruction → what it makes and keeps
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        if not program.backward:
            continue
        share = tensor.share if tensor.recomputed else 0.0
        saved, again = saved + (1.0 - share) * row, again + share * row
        at = max(tensor.producer, 0)
        own = share * row if tensor.cached else zero
        cached = cached + own
        made[at] = made.get(at, zero) + (1.0 - share) * row + own
    return saved, again, cached, made


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMemory:
    """Memory of a block whose backward is run in two pieces. [B]

    Attributes:
        forward, backward: The most that it needs beyond what it keeps, `backward` in one piece.
        cached: Of forward, until the forward pass of the chunk ends.
        inputs: The same of the gradient of the input.
        waiting: What it keeps from then on, until its weight gradients are made.
        weights: The most that these need beyond that.
    """

    forward: Floats
    cached: Floats
    backward: Floats
    inputs: Floats
    waiting: Floats
    weights: Floats


def split_memory(costs: BlockCosts) -> SplitMemory:
    """Return the memory that a block needs in each piece of its work."""
    program = costs.program
    saved, again, cached, made = _kept(costs)
    zero = np.zeros_like(saved)
    forward = np.maximum(_peak([costs.forward], made, {}) - saved - cached, 0.0)
    if not program.backward:
        return SplitMemory(
            forward=forward, cached=cached, backward=zero, inputs=zero, waiting=zero, weights=zero
        )
    pieces = split_backward(costs.backward, program.backward_exit)
    before = len(costs.recomputation.instructions)
    contents, taken, staying = _held_gradients(pieces, before)
    soon, late = _last_instructions(pieces.inputs, before), _last_instructions(pieces.weights, 0)
    dropped: dict[int, Floats] = {}
    dropped_late = dict(contents)
    end = before + len(pieces.inputs.instructions) - 1
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        waiting = [late[path] for path in tensor.savers if path in late]
        drops, at = dropped, soon.get(tensor.consumer, end)
        if waiting:
            drops, at = dropped_late, max(waiting)
        drops[at] = drops.get(at, zero) + row
    made_again = {0: again}
    for at, size in taken.items():
        made_again[at] = made_again.get(at, zero) + size
    inputs = _peak([costs.recomputation, pieces.inputs], made_again, dropped)
    waiting_bytes = saved + again + sum(taken.values(), zero) + staying
    return SplitMemory(
        forward=forward,
        cached=cached,
        backward=_backward_peak(costs, again),
        inputs=inputs,
        waiting=waiting_bytes - sum(dropped.values(), zero),
        weights=_peak([pieces.weights], {}, dropped_late, is_waiting=True),
    )


def _held_gradients(
    pieces: SplitBackward, before: int
) -> tuple[dict[int, Floats], dict[int, Floats], Floats]:
    """Return the gradients that reach matmuls and are stored for their weight gradients.

    Where one was gathered for the input's gradient, the gathered copy is what stays. Given are
    what each late instruction drops, what each earlier one takes for it, and the copies that stay.
    """
    products, saved = _last_instructions(pieces.inputs, before), set[int]()
    drops: dict[int, Floats] = {}
    taken: dict[int, Floats] = {}
    staying = np.zeros(pieces.inputs.work_s.shape[1])
    for index, instruction in enumerate(pieces.weights.instructions):
        if not isinstance(instruction, ComputeInstruction):
            continue
        size = pieces.weights.transient_bytes[index]
        sizes = pieces.inputs.transient_bytes
        copies = pieces.contents[index]
        gathered = [at for at in copies if sizes[at].any() and at not in saved]
        if gathered:
            saved.update(gathered)
            drops[index] = sizes[gathered].sum(axis=0)
            staying = staying + drops[index]
        elif not any(at in saved for at in copies):
            at = products.get(instruction.path, before)
            taken[at] = taken.get(at, 0.0 * size) + size
            drops[index] = size
    return drops, taken, staying


def _last_instructions(phase: PhaseCosts, before: int) -> dict[str, int]:
    """Return operator path → its last computation in a phase, numbered behind `before` others."""
    return {
        instruction.path: before + index
        for index, instruction in enumerate(phase.instructions)
        if isinstance(instruction, ComputeInstruction)
    }


def _backward_peak(costs: BlockCosts, again: Floats) -> Floats:
    """Return the peak memory of backward beyond the tensors that forward saved. [B]"""
    program = costs.program
    before = len(costs.recomputation.instructions)
    last_of = _last_instructions(costs.backward, before)
    dropped: dict[int, Floats] = {}
    end = before + len(program.backward) - 1
    for row, tensor in zip(costs.saved_bytes, program.saved, strict=True):
        at = last_of.get(tensor.consumer, end)
        dropped[at] = dropped.get(at, 0.0 * row) + row
    return _peak([costs.recomputation, costs.backward], {0: again}, dropped)


def _peak(
    phases: Sequence[PhaseCosts],
    made: Mapping[int, Floats],
    dropped: Mapping[int, Floats],
    *,
    is_waiting: bool = False,
) -> Floats:
    """Return the peak memory of instructions in order, above their start. [B]

    What is gathered stays to the end; what an operator needs for itself goes with it.

    Args:
        phases: One after another, instructions numbered through.
        made: Step → what it allocates for longer.
        dropped: Step → what goes when it is done.
        is_waiting: Operators have what they need already.
    """
    contents = np.zeros(phases[0].work_s.shape[1])
    most = contents
    number = 0
    for phase in phases:
        for index, instruction in enumerate(phase.instructions):
            contents = contents + made.get(number, 0.0)
            if isinstance(instruction, CollectiveInstruction):
                contents = contents + phase.transient_bytes[index]
                most = np.maximum(most, contents)
            elif not is_waiting:
                most = np.maximum(most, contents + phase.transient_bytes[index])
            contents = contents - dropped.get(number, 0.0)
            number += 1
    return most


def gathered_bytes(storage: Storage, scale: Scale) -> Floats:
    """Return the parameters of a block that are gathered for its use, whole. [B]"""
    total = np.zeros(len(storage.parameters))
    for sync in storage.sync:
        if sync.gather_axes:
            live = sync.gather_bytes * sync.live_share
            total = total + live * (scale.degree(sync.gather_axes) > 1)
    return total


def staged_bytes(storage: Storage, scale: Scale) -> Floats:
    """Return the gradients of a block that are whole only during their reduction. [B]"""
    total = np.zeros(len(storage.parameters))
    for sync in storage.sync:
        if sync.is_staged:
            live = sync.reduce_bytes * sync.live_share
            total = total + live * (scale.degree(sync.scatter_axes) > 1)
    return total
