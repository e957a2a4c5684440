"""In-place access of kernels to the second memory tier: their bytes in that tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.cost.expanded import ExpandedMemory
from wattree.cost.rates import Rates
from wattree.graph import OperatorKind
from wattree.hardware import Node
from wattree.lowering.program import (
    BlockProgram,
    ComputeInstruction,
    Instruction,
    InstructionPhase,
    Scale,
)
from wattree.strategy import Offload

#: Of one step: kept activations in expanded memory [B], and where weights are not gathered.
Moved = tuple[Floats | None, Floats]

#: Of what a lookup in a table moves, the rows read; the rest is written where they are used.
_TABLE_SHARE = 0.5


def split_offload(offload: Offload, node: Node) -> tuple[Offload, Offload]:
    """Return the offload by copies, and the offload to memory that the device accesses in place.

    Args:
        node: Whose expanded memory says how it is used.
    """
    if node.cxl is None or not node.cxl.is_accessed_in_place or "cxl" not in offload.tiers:
        return offload, Offload()
    return offload.only("host"), offload.only("cxl")


def expanded_memory(
    offload: Offload, node: Node, *, devices: int, spilled: Floats | float, stage_layers: Floats
) -> ExpandedMemory | None:
    """Return the second tier as seen by a device of a node; None if it is empty.

    Devices of a node share its link equally, all devices share the pool's, whether they
    work or not.

    Args:
        offload: Contents of the tier: the second result of `split_offload`.
        spilled: Overflowing share of the data without a placement of its own.
        stage_layers: Layers of a pipeline stage, `(n,)`.
    """
    tier = node.cxl
    if tier is None or not offload.tiers:
        return None
    rate = tier.bandwidth_bytes_per_s
    if not tier.per_device:
        rate = min(rate / node.devices, node.device.host_link_bytes_per_s)
    if tier.pool_bytes_per_s is not None:
        rate = min(rate, tier.pool_bytes_per_s / devices)
    one = np.ones_like(stage_layers)
    layers = offload.layers if offload.activations else 0
    return ExpandedMemory(
        ratio=node.device.memory_bandwidth_bytes_per_s / rate,
        latency_s=tier.latency_s,
        concurrent=tier.access == "concurrent",
        spilled=np.asarray(spilled) * one,
        saved=np.minimum(layers / np.maximum(stage_layers, 1.0), 1.0),
        parameters=offload.parameters is not None,
        optimizer=offload.optimizer is not None,
        table_misses=0.0 if offload.tables is None else 1.0 - offload.hits,
    )


def tier2_saved_rows(program: BlockProgram, saved_bytes: Floats, tier: ExpandedMemory) -> Floats:
    """Return the bytes of each saved tensor in expanded memory, `(saved tensors, n)`. [B]

    Recomputed tensors stay on the device.
    """
    tier2 = np.zeros_like(saved_bytes)
    for index, tensor in enumerate(program.saved):
        if program.backward and not tensor.recomputed:
            tier2[index] = saved_bytes[index] * tier.saved
    return tier2


def tier2_accesses(
    program: BlockProgram, tier2: Floats
) -> tuple[Mapping[int, Floats], Mapping[int, Floats], Mapping[int, Floats]]:
    """Return the saved-tensor traffic of each instruction with expanded memory, by phase. [B]

    The producer writes a tensor; its saver reads it once in forward and once in backward. Block
    inputs are written with the first instruction.

    Args:
        tier2: Bytes of each saved tensor in the tier, `(saved tensors, n)`. [B]
    """
    phases: tuple[dict[int, Floats], dict[int, Floats], dict[int, Floats]] = ({}, {}, {})
    lists = program.forward, program.recomputation, program.backward
    for tensor, size in zip(program.saved, tier2, strict=True):
        if not size.any():
            continue
        _add(phases[0], max(tensor.producer, 0), size)
        for number, steps in enumerate(lists):
            for path in tensor.savers or (tensor.consumer,):
                if (step := _reader(steps, path)) is not None:
                    _add(phases[number], step, size)
    return phases


def _reader(steps: Sequence[Instruction], path: str) -> int | None:
    """Return the instruction that reads an operator's saved tensor: of gradients, the weight's."""
    own = [i for i, s in enumerate(steps) if isinstance(s, ComputeInstruction) and s.path == path]
    weight = [i for i in own if steps[i].phase is InstructionPhase.WEIGHT_GRADIENT]
    return next(iter((*weight, *own)), None)


def _add(found: dict[int, Floats], step: int, size: Floats) -> None:
    found[step] = found[step] + size if step in found else size


def stored_whole(program: BlockProgram, scale: Scale) -> Floats:
    """Return 1 where a block uses its parameters in place from storage, `(n,)`.

    0 where they are gathered from shards first: what is gathered is on the device.
    """
    whole = np.ones_like(scale.micro_batch)
    for group in program.parameters:
        whole = whole * (scale.degree(group.parameter_axes) <= 1)
    return whole


def tier2_share(
    step: ComputeInstruction, traffic: Floats, moved_bytes: Moved, scale: Scale, rates: Rates
) -> Floats:
    """Return the share of an instruction's memory traffic that goes to expanded memory, `(n,)`.

    Args:
        traffic: All that it moves. [B]
        moved_bytes: What it moves of kept activations that lie there, None for nothing, and where
            its weights are used where they are stored.
    """
    tier = rates.expanded
    assert tier is not None
    saved, whole = moved_bytes
    moved = np.maximum(traffic, 1.0)
    placed = np.zeros_like(traffic)  # of what has a tier of its own
    tier2 = np.zeros_like(traffic)
    if saved is not None:
        placed = tier2 = np.minimum(saved / moved, 1.0)
    reads_weights = step.phase is not InstructionPhase.WEIGHT_GRADIENT and step.weights
    if reads_weights and step.kind is OperatorKind.EMBEDDING:
        is_table = not any(size.seq for size in step.traffic)
        misses = tier.table_misses if is_table else tier.parameters * whole
        if np.any(misses > 0):
            own = np.minimum(_TABLE_SHARE, 1.0 - placed) * (1.0 if is_table else whole)
            placed, tier2 = placed + own, tier2 + own * misses
    elif reads_weights and tier.parameters:
        size = sum((scale.value(w) for w in step.weights), 0.0) * rates.element_bytes
        own = np.minimum(size * step.share / moved, 1.0 - placed) * whole
        placed, tier2 = placed + own, tier2 + own
    return np.asarray(tier2 + (1.0 - placed) * tier.spilled)
