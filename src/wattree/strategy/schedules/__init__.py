"""Pipeline schedules: the order in which one stage works on chunks and micro-batches."""

from wattree.strategy.schedules.orders import SCHEDULE_ORDERS, check_order, stage_order
from wattree.strategy.schedules.slot import Slot

__all__ = ["SCHEDULE_ORDERS", "Slot", "check_order", "stage_order"]
