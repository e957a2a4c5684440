"""Averages gradients where several training processes share a device.

`attach` registers a communication hook with a DDP model. Loads torch.
"""

from wattree.runtime.reduce.ddp import attach
from wattree.runtime.reduce.hook import Reduction

__all__ = ["Reduction", "attach"]
