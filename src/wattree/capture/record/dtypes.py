"""Types of operands that kernels refuse to mix, and that fake tensors let pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

#: Products by name → how many of their first tensors must be of one type: kernels of CPUs and GPUs
#: say "expected m1 and m2 to have the same dtype", rules for fake tensors take the first one's.
_OF_ONE_TYPE: Final[Mapping[str, int]] = {
    "addbmm": 3,
    "addmm": 3,
    "addmv": 3,
    "attention": 3,
    "baddbmm": 3,
    "bmm": 2,
    "convolution": 3,
    "dot": 2,
    "mm": 2,
    "mv": 2,
}


def check_dtypes(func: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Reject an operator whose kernels do not support the types of its operands.

    Raises:
        RuntimeError: They differ; says what was found.
    """
    name = str(func).split(".")[1]
    found = tensors[: _OF_ONE_TYPE.get(name, 0)]
    types = tuple(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in found))
    if len(types) > 1:
        raise RuntimeError(
            f"its operands are {' and '.join(types)}, expected one type: cast one of them, or run "
            "it under torch.autocast"
        )
