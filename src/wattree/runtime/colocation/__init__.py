"""Several processes of a job on one device: where they go, and what keeps them together.

Nothing here loads torch.
"""

from wattree.runtime.colocation.environment import Colocation, colocation_from
from wattree.runtime.colocation.layout import (
    DeviceShape,
    Layout,
    NodeShape,
    Place,
    layout,
    share_of,
)

__all__ = [
    "Colocation",
    "DeviceShape",
    "Layout",
    "NodeShape",
    "Place",
    "colocation_from",
    "layout",
    "share_of",
]
