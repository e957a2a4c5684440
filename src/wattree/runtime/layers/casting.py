"""What autocast does to a linear layer, for layers that are not built of PyTorch's own."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["autocasted"]


def autocasted(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return input and parameters in autocast's type where it is on, else as they are.

    As of `nn.functional.linear` under autocast, float64 is left alone.
    """
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return (x, *parameters)
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if each is None else each.to(dtype) for each in (x, *parameters))
