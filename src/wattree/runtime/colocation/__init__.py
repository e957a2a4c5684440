"""Several processes of a job on one device: their placement and supervision.

Nothing here loads torch.
"""

from wattree.runtime.colocation.environment import ColocatedProcess, colocation_from
from wattree.runtime.colocation.layout import DeviceShape, NodeShape, layout, share_of

__all__ = [
    "ColocatedProcess",
    "DeviceShape",
    "NodeShape",
    "colocation_from",
    "layout",
    "share_of",
]
