"""Context of a training process: its model, device, ranks and host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from wattree.errors import OutputError, UnknownNameError
from wattree.trace import Activity


def class_name(model: Any) -> str:
    """Return the class name of a model, without distributed wrappers."""
    inner = getattr(model, "module", model)
    return "" if model is None else type(inner).__name__


def gradient_bytes(model: Any) -> float | None:
    """Return the bytes of a replica's gradients; None without a model. [B]"""
    if model is None:
        return None
    return float(sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad))


def device_index(model: Any) -> int | None:
    """Return the CUDA device of a model; None if it is on none."""
    first = None if model is None else next(iter(model.parameters()), None)
    if first is None or first.device.type != "cuda":
        return None
    return int(first.device.index or 0)


def device_uuid(index: int | None) -> tuple[str, ...] | None:
    """Return a CUDA device's identifier in meters; None for all devices of the node."""
    if index is None:
        return None
    import torch

    if torch.version.hip is not None:  # AMD's, which zeus knows by number
        return (str(index),)
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else (f"GPU-{uuid}",)


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the world size; (0, 1) outside distributed jobs."""
    if "torch.distributed" not in sys.modules:
        return 0, 1
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return int(distributed.get_rank()), int(distributed.get_world_size())


def activity_of(name: Activity | str) -> Activity:
    """Return an activity from its name.

    Raises:
        UnknownNameError: There is none of that name.
    """
    try:
        return Activity(name)
    except ValueError:
        raise UnknownNameError(
            kind="activity", name=str(name), known=[str(each) for each in Activity]
        ) from None


def check_place(out: Path) -> None:
    """Reject, before the loop starts, a path to which the run cannot be written.

    Raises:
        OutputError: It cannot.
    """
    if out.is_dir():
        raise OutputError(f"{out}: cannot be written: it is a folder; name a file")
    if not out.parent.is_dir():
        raise OutputError(f"{out}: cannot be written: its folder does not exist; make it")
    if not os.access(out.parent, os.W_OK):
        raise OutputError(f"{out}: cannot be written: its folder may not be written to")


def prefetches(loader: Any) -> bool | None:
    """Return whether a loader prefetches; None if unknown."""
    workers = getattr(loader, "num_workers", None)
    return workers > 0 if isinstance(workers, int) else None
