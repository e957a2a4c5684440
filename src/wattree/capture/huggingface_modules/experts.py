"""The library's matmuls over experts: one operator for all of them, and its FLOP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula
from transformers.integrations import moe

_ASKED: Final = "_can_use_grouped_mm"


@contextmanager
def grouped_matmuls() -> Iterator[None]:
    """Run grouped matmuls as the library's own operator.

    Torch's own, which it prefers, knows shapes of bfloat16 only where nothing is computed; both do
    the same work and keep the same tensors.
    """
    original = getattr(moe, _ASKED, None)
    if original is None:  # a release without them
        yield
        return
    setattr(moe, _ASKED, lambda *_, **__: False)
    try:
        yield
    finally:
        setattr(moe, _ASKED, original)


def count_grouped_matmuls() -> None:
    """Register the FLOP of the grouped matmuls of mixtures of experts with torch's counter.

    Each row meets one expert's matrix, so the work is that of one product of all rows:
    `2 rows in out`, and twice that in backward.
    """
    operators = torch.ops.transformers
    if not hasattr(operators, "grouped_mm_fallback"):  # a release without experts' kernels
        return
    if operators.grouped_mm_fallback in flop_registry:
        return

    @register_flop_formula(operators.grouped_mm_fallback)
    def _(rows, weight, *_, **__) -> int:  # type: ignore[no-untyped-def]
        return int(2 * rows[0] * rows[1] * weight[-1])

    @register_flop_formula(operators.grouped_mm_fallback_backward)
    def _(rows, weight, *_, **__) -> int:  # type: ignore[no-untyped-def]
        return int(4 * rows[0] * rows[1] * weight[-1])
