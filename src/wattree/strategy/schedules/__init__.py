"""Pipeline schedules: the order in which one stage works on chunks and micro-batches."""

from wattree.strategy.schedules.catalog import PIPELINE_SCHEDULES
from wattree.strategy.schedules.check import live_by_chunk
from wattree.strategy.schedules.orders import stage_orders
from wattree.strategy.schedules.placement import (
    PLACEMENTS,
    ChunkPlacement,
    Place,
    chunk_layers,
    looped,
)
from wattree.strategy.schedules.schedule import Order
from wattree.strategy.schedules.shortened import Shortened, longest_run, shortened
from wattree.strategy.schedules.slot import Slot, SlotWork, read_slot

__all__ = [
    "PIPELINE_SCHEDULES",
    "PLACEMENTS",
    "ChunkPlacement",
    "Order",
    "Place",
    "Shortened",
    "Slot",
    "SlotWork",
    "chunk_layers",
    "live_by_chunk",
    "longest_run",
    "looped",
    "read_slot",
    "shortened",
    "stage_orders",
]
