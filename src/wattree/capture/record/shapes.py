"""Operators of `wattree::` that are defined by the shapes of their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def shapes_of(name: str, schema: str, *, runs: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that defines an operator of which only shapes are known: its function's.

    Args:
        name: In `torch.ops.wattree`.
        schema: Arguments and results, as PyTorch writes them.
        runs: On real tensors, too, with zeros as results: of gradients, whose values nothing reads.
    """
    torch.library.define(f"wattree::{name}", schema)

    def define(sizes: Any) -> Any:
        torch.library.register_fake(f"wattree::{name}", sizes)
        if runs:
            torch.library.impl(f"wattree::{name}", "cpu", lambda *args: _zeroed(sizes(*args)))
        return sizes

    return define


def _zeroed(made: Any) -> Any:
    return made.zero_() if isinstance(made, torch.Tensor) else type(made)(map(_zeroed, made))
