"""Pipeline schedules: the order in which one stage works on chunks and micro-batches."""

from wattree.strategy.schedules.catalogue import PIPELINE_SCHEDULES
from wattree.strategy.schedules.check import alive_by_chunk, most_alive, order_problems
from wattree.strategy.schedules.orders import (
    check_orders,
    pipeline_schedule,
    schedule_misfits,
    stage_order,
    stage_orders,
)
from wattree.strategy.schedules.placement import PLACEMENTS, ChunkPlacement, Place, looped
from wattree.strategy.schedules.schedule import Order, PipelineSchedule
from wattree.strategy.schedules.slot import Slot, Work, read_slot

__all__ = [
    "PIPELINE_SCHEDULES",
    "PLACEMENTS",
    "ChunkPlacement",
    "Order",
    "PipelineSchedule",
    "Place",
    "Slot",
    "Work",
    "alive_by_chunk",
    "check_orders",
    "looped",
    "most_alive",
    "order_problems",
    "pipeline_schedule",
    "read_slot",
    "schedule_misfits",
    "stage_order",
    "stage_orders",
]
