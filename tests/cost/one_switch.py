"""Ranks at one switch."""

from __future__ import annotations

from wattree.hardware.topologies import (
    device_name,
)

__all__ = ["names"]


def names(count: int) -> list[str]:
    """Return device names."""
    return [device_name(device) for device in range(count)]
