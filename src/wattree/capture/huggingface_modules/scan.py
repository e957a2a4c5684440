"""The selective scan of state-space models as one operator, as its fused kernel runs it.

Without that kernel the library loops over the time steps in Python, with some operators for each
token, and keeps every state. No one trains so. Here the scan is one operator that reads and keeps
what the published kernel does: its inputs, and the state at the end of every chunk.

References:
    [1] A. Gu, T. Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023,
        arXiv:2312.00752, section 3.3.2 and appendix D.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from wattree.capture.huggingface_modules.chunked_scan import (
    CHUNKED_SCANS,
    by_operand,
    save_context,
)
from wattree.capture.record.shapes import shapes_of

_NAME: Final = "mamba_selective_scan"
_CONVOLUTION: Final = "causal_conv1d_fn"
_CHUNK: Final = 2048  # time steps per state that is kept; `kChunkSize` of the published kernel


@shapes_of(
    "selective_scan",
    "(Tensor x_BDS, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? z, Tensor? bias) "
    "-> (Tensor, Tensor)",
)
def _(x_BDS, dt, a, b, c, d, z, bias):  # type: ignore[no-untyped-def]
    batch, width, steps = x_BDS.shape
    states = x_BDS.new_empty(
        (batch, width, -(-steps // _CHUNK), 2 * a.shape[-1]), dtype=torch.float32
    )
    return torch.empty_like(x_BDS, memory_format=torch.contiguous_format), states


@shapes_of(
    "selective_scan_backward", "(Tensor gradient, Tensor states, Tensor[] operands) -> Tensor[]"
)
def _(gradient, states, operands):  # type: ignore[no-untyped-def]
    return [torch.empty_like(operand) for operand in operands]


def _save_context(ctx: Any, inputs: Any, output: Any) -> None:
    save_context(ctx, inputs, output[1:])


def _backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    states, *operands = ctx.saved_tensors
    backward = torch.ops.wattree.selective_scan_backward
    return by_operand(ctx, backward(gradient, states, list(operands)))


torch.library.register_autograd("wattree::selective_scan", _backward, setup_context=_save_context)


def _instead(  # the arguments of the library's function
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    out, states = torch.ops.wattree.selective_scan(hidden_states, dt, A, B, C, D, z, delta_bias)
    return (out, states[:, :, -1, 1::2]) if return_last_state else out


@contextmanager
def fused_scans(module: nn.Module) -> Iterator[bool]:
    """Put the one operator in the place of the library's loops while `module` runs.

    Yields whether the module's code has such a loop.
    """
    functions = {_NAME: _instead, **CHUNKED_SCANS, _CONVOLUTION: None}
    files = {sys.modules[type(child).__module__] for child in module.modules()}
    changed = [(file, name) for file in files for name in functions if hasattr(file, name)]
    originals = [getattr(file, name) for file, name in changed]
    for (file, name), original in zip(changed, originals, strict=True):
        # Without another function the library's own, not one of an installed package.
        setattr(file, name, functions[name] or inspect.unwrap(original))
    try:
        yield bool(changed)
    finally:
        for (file, name), original in zip(changed, originals, strict=True):
            setattr(file, name, original)
