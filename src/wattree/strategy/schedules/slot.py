"""One piece of a stage's schedule."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Slot"]


class Slot(NamedTuple):
    """Forward or backward of one micro-batch through one chunk of layers."""

    chunk: int
    micro_batch: int
    backward: bool
