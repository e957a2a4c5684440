"""From one placement of a tensor to another: the cheapest sequence of collectives and messages."""

from wattree.lowering.reshard.placement import DeviceGrid, TensorPlacement
from wattree.lowering.reshard.plan import plan_reshard
from wattree.lowering.reshard.prices import LinkTime

__all__ = [
    "DeviceGrid",
    "LinkTime",
    "TensorPlacement",
    "plan_reshard",
]
