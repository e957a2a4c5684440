"""Replaces NCCL, which allows one rank per device, by a process group that allows several."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from wattree.runtime.colocation.environment import ColocatedProcess


def change_backend(colocation: ColocatedProcess) -> None:
    """Let scripts that ask for NCCL, or for nothing, have gloo."""
    if not dist.is_available():
        return
    for name in ("init_process_group", "new_group"):
        original = getattr(dist, name)
        wrapped = _wrapped(original, colocation)
        for module in [*sys.modules.values()]:  # some of torch's have it by its name
            is_torch = getattr(module, "__name__", "").startswith("torch.distributed")
            if is_torch and getattr(module, name, None) is original:
                setattr(module, name, wrapped)


def shared_backend(backend: str | None) -> str | None:
    """Return the backend for several ranks per device, in place of the requested one.

    Args:
        backend: Such as `nccl`, `cpu:gloo,cuda:nccl`, or None, which is the best for each device.
    """
    if backend is None:
        return None
    parts = [part.rsplit(":", 1)[-1].lower() for part in backend.split(",")]
    return "gloo" if "nccl" in parts else backend


def _wrapped(original: Callable[..., Any], colocation: ColocatedProcess) -> Callable[..., Any]:
    names = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def start(*given: Any, **named: Any) -> Any:
        asked = dict(zip(names, given, strict=False)) | named
        backend = asked.get("backend")
        is_first = original.__name__ == "init_process_group"
        wanted = shared_backend(str(backend)) if backend is not None else None
        if is_first and backend is None:
            wanted = "gloo"
        if wanted is None or wanted == backend:
            return original(*given, **named)
        for option in ("pg_options", "device_id"):  # of NCCL, and what makes it start at once
            asked.pop(option, None)
        if is_first and colocation.device == 0 and colocation.is_leader:
            sys.stderr.write(
                f"wattree: the process group is of gloo instead of {backend or 'the default'}: "
                "NCCL takes one rank of a device\n"
            )
        return original(**(asked | {"backend": wanted}))

    return start
