"""Averages gradients where several training processes share a device.

`attach` registers a communication hook with a DDP model; `share_batch_norm` has batch norm take its
statistics over all processes of a device. Loads torch.
"""

from wattree.runtime.reduce.batch_norm import share_batch_norm
from wattree.runtime.reduce.ddp import attach
from wattree.runtime.reduce.hook import Reduction

__all__ = ["Reduction", "attach", "share_batch_norm"]
