"""Backward passes that compute activations again, by `torch.utils.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from wattree.runtime.layers import ShardedLinear
from wattree.runtime.parallel.blocks import blocks_of
from wattree.runtime.parallel.context import AttentionCore

_MATMULS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default})
#: Whether the output of a layer's n-th matmul, counted from 0, is kept for backward.
_Keeps = Callable[[int], bool]


def recompute_in_backward(part: nn.Module, kind: str) -> None:
    """Let layers recompute in backward the tensors that they do not save.

    Names of parameters stay as they are.

    Args:
        part: A model, or a rank's part of one.
        kind: One of `RECOMPUTATIONS`, or `block_N`.
    """
    if kind == "selective":
        cores = [each for each in part.modules() if isinstance(each, AttentionCore)]
        _checkpoint(iter(cores))
    elif kind == "selective_matmul":
        _checkpoint(iter(blocks_of(part).values()), keeps=lambda _: True, attention=False)
    elif kind == "selective_operator":  # attention, and every second product
        _checkpoint(iter(blocks_of(part).values()), keeps=lambda n: n % 2 == 0, attention=True)
    elif kind == "selective_attention_matmul":  # qkv is one product, the output the next
        _checkpoint(iter(blocks_of(part).values()), keeps=lambda n: n <= 1, attention=False)
    elif kind == "selective_qkv":  # the products of query, key and value, which are one
        _checkpoint(iter(blocks_of(part).values()), keeps=lambda n: n == 0, attention=False)
    elif kind != "none":
        every = 1 if kind == "full" else int(kind.removeprefix("block_"))
        blocks = blocks_of(part).items()
        _checkpoint(layer for number, layer in blocks if number % every == 0)


def _checkpoint(
    modules: Iterator[nn.Module], *, keeps: _Keeps | None = None, attention: bool = False
) -> None:
    for module in modules:
        options: dict[str, Any] = {"use_reentrant": False}
        if keeps is not None:
            options["context_fn"] = partial(_contexts, keeps, attention, _numbered(module))
        # Not a wrapper around the module: its parameters would have other names.
        module.forward = partial(checkpoint, module.forward, **options)


def _numbered(module: nn.Module) -> list[int]:
    """Return where to read the number of the linear layer that computes, in the order of calls."""
    current = [0]

    def hook(number: int) -> Callable[..., None]:
        def entered(*_: Any) -> None:
            current[0] = number

        return entered

    layers = (each for each in module.modules() if isinstance(each, (nn.Linear, ShardedLinear)))
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(hook(number))
    return current


def _contexts(keeps: _Keeps, attention: bool, current: list[int]) -> Any:  # noqa: FBT001 - as above
    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        is_kept = attention and "scaled_dot_product" in str(operator)
        if operator in _MATMULS:
            is_kept = keeps(current[0])
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
