"""A job's optimizer as PyTorch's, and its precision as autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from wattree.errors import JobError

#: Name → PyTorch's class, its other settings and its usual learning rate.
_OPTIMIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any], float]] = {
    "adagrad": (torch.optim.Adagrad, {}, 1e-2),
    "adam": (torch.optim.Adam, {}, 1e-3),
    "adamw": (torch.optim.AdamW, {}, 1e-3),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}, 1e-2),
    "rmsprop": (torch.optim.RMSprop, {}, 1e-2),
    "rmsprop_momentum": (torch.optim.RMSprop, {"momentum": 0.9}, 1e-2),
    "sgd": (torch.optim.SGD, {}, 1e-2),
}
#: Precision → type that autocast takes; None for products in float32.
_AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "amp": torch.float16}


def optimizer_of(
    name: str,
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float | None,
    source: str,
    scale: float = 1.0,
) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer of a job's name.

    Args:
        learning_rate: None for the usual one.
        source: File of the job, for messages.

    Raises:
        JobError: None is run.
    """
    if name not in _OPTIMIZERS:
        known = ", ".join(_OPTIMIZERS)
        raise JobError(
            source, [f"optimizer: found '{name}', expected one that train runs: {known}"]
        )
    make, settings, usual = _OPTIMIZERS[name]
    rate = usual if learning_rate is None else learning_rate
    settings = {"lr": rate * scale, **settings}
    found: torch.optim.Optimizer = make(parameters, **settings)
    return found


def autocast_of(
    precision: str, device: torch.device, *, source: str
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Return the context of forward passes in a job's precision.

    Raises:
        JobError: That precision is not run, or not on that device.
    """
    if precision not in _AUTOCAST or (precision == "amp" and device.type != "cuda"):
        known = ", ".join(name for name in _AUTOCAST if name != "amp" or device.type == "cuda")
        raise JobError(
            source,
            [
                f"precision: found '{precision}', expected one that train runs on {device.type}: "
                f"{known}"
            ],
        )
    if precision == "tf32" and device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    dtype = _AUTOCAST[precision]
    if dtype is None:
        return contextlib.nullcontext
    return lambda: torch.autocast(device.type, dtype=dtype)
