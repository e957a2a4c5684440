"""Memory that a stage holds for the whole step: parameters, gradients, optimizer state, buffers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.arrays import Floats
from wattree.compiler.tasks.chunk import BlockParts
from wattree.compiler.tasks.ledger import Holding, Item, Items, summed
from wattree.cost import Software
from wattree.lowering.movement import Movement
from wattree.lowering.storage import buffer_bytes, postponed_bytes, sharded_bytes
from wattree.lowering.streams import CATEGORIES


def stage_holdings(
    blocks: Sequence[BlockParts],
    moves: Movement,
    software: Software,
    items: Items,
    *,
    input_bytes: float = 0.0,
) -> tuple[Holding, ...]:
    """Return the static memory of a stage, by category and block.

    Args:
        items: Item → number.
        input_bytes: Of input batches. [B]
    """
    sync = [group for block in blocks for group in block.storage.sync]
    updated = np.array([sum(block.storage.updated_elements[0] for block in blocks)])
    buffers = float(buffer_bytes(sharded_bytes(sync, updated), updated, software)[0])
    postponed = postponed_bytes(updated, software) * any(group.gather_axes for group in sync)
    state = sum(block.storage.optimizer for block in blocks)
    held = {items(Item("communication", "buffer", "", "buffers of a sharded optimizer")): [buffers]}
    weights = {key: size for block in blocks for key, size in block.storage.weights.items()}
    if weights:
        item = items(Item("gradients", "buffer", "", "placeholders of gradients"))
        held[item] = [float(size[0]) for size in weights.values()]
    if input_bytes:
        held[items(Item("input", "buffer", "", "input batches"))] = [input_bytes]
    for block in blocks:
        storage = block.storage
        sizes = {"parameters": moves.device_parameters(storage)}
        if storage.cache is not None:
            sizes["kv_cache"] = float(storage.cache[0])
        if lasting := float(storage.gradients[0]) - moves.passing_gradients(storage):
            sizes["gradients"] = lasting
        if moves.offload.optimizer is None:
            share = postponed / np.maximum(state, 1.0)
            sizes["optimizer"] = moves.device_optimizer(storage) * float(1.0 - share[0])
        for category, size in sizes.items():
            item = items(Item(category, "stored", block.name, category))
            held.setdefault(item, []).append(size)
    return summed(held)


def static_bytes(holdings: Sequence[Holding], items: Items) -> Floats:
    """Return the static memory by category. [B]"""
    category = [CATEGORIES.index(item.category) for item in items.index]
    row = np.zeros(len(CATEGORIES))
    for holding in holdings:
        row[category[holding.item]] += holding.bytes
    return row
