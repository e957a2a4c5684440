"""FLOP of dispatched operators: matrix products and convolutions, 2 per multiply-add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["flop_of"]


def flop_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the FLOP of one dispatched operator, 0 for what computes no products."""
    packet = func.overloadpacket
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        batch, heads, queries, width = args[0].shape
        keys, value_width = args[2].shape[-2:]
        return int(2 * batch * heads * queries * keys * (width + value_width))
    if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward:
        batch, heads, queries, width = args[1].shape
        keys, value_width = args[3].shape[-2:]
        return int(4 * batch * heads * queries * keys * (width + value_width))
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0
