"""The library's mixtures of experts as those of the catalog: dispatch, grouped matmuls, combine.

The library sorts tokens by expert with a dozen operators on indices. Which rows go where depends on
values; that every token goes to `top_k` experts does not. Here the way in and the way out are one
operator each, and between them tokens are `(tokens, top_k, width)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from transformers.integrations import moe

from wattree.capture.record.shapes import shapes_of

_ASKED: Final = "_can_use_grouped_mm"
#: The library's name for experts that grouped matmuls run.
_GROUPED: Final = "grouped_mm"


@contextmanager
def routed_experts() -> Iterator[None]:
    """Run the experts of the library's modules as `_experts` does, with its grouped matmuls.

    Torch's own, which it prefers, knows shapes of bfloat16 only where nothing is computed; both do
    the same work and keep the same tensors.
    """
    asked, known = getattr(moe, _ASKED, None), getattr(moe, "ALL_EXPERTS_FUNCTIONS", None)
    if asked is None or known is None:  # a release without them
        yield
        return
    experts = known[_GROUPED]
    setattr(moe, _ASKED, lambda *_, **__: False)
    known[_GROUPED] = _experts
    try:
        yield
    finally:
        setattr(moe, _ASKED, asked)
        known[_GROUPED] = experts


def route_all(module: nn.Module) -> None:
    """Let mixtures that the library does not run by grouped matmuls be run by them, too.

    Llama 4's run every expert on every token, and weigh most of them by zero. They weigh what
    experts read; here, as in all other mixtures, what these return is weighed: the same work. Those
    with experts that return what they read (`zero_expert_num`) call their experts one by one.
    """
    for mixture in module.modules():
        if type(mixture).__name__ == "Llama4TextMoe":
            mixture.forward = partial(_routed, mixture)
        elif hasattr(mixture, "zero_expert_num") and hasattr(mixture, "gate_up_proj"):
            # The library stores matrices for these, too; checkpoints do not, no token meets them.
            stored = mixture.gate_up_proj.detach()[: mixture.num_routed_experts]
            mixture.gate_up_proj = nn.Parameter(stored.clone())
            mixture.forward = partial(_routed_some, mixture)


def _routed(mixture: Any, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = hidden.flatten(0, -2)
    logits = nn.functional.linear(tokens, mixture.router.weight)
    values, index = logits.topk(mixture.top_k, dim=1)
    weights = values.float().sigmoid().to(tokens.dtype)
    out = mixture.shared_expert(tokens) + _experts(_Gated(mixture.experts), tokens, index, weights)
    return out, logits


def _routed_some(
    experts: Any, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Return what experts make of `hidden`, of which some return it as it is.

    Each is picked as often as any other, which is what balancing aims at (Meituan LongCat Team,
    "LongCat-Flash Technical Report", 2025, arXiv:2509.01322, section 2.1: 8 of 12 on average).
    """
    count, top_k = experts.num_routed_experts, top_k_index.shape[-1]
    at_work = round(top_k * count / (count + experts.zero_expert_num))
    index, weights = top_k_index[:, :at_work], top_k_weights[:, :at_work]
    own = _Gated(experts, num_experts=count, is_transposed=False)
    return _experts(own, hidden, index, weights) + hidden * top_k_weights[:, at_work:].sum(1, True)


class _Gated:
    """What `_experts` asks of a module, for one that the library gives no kernels."""

    def __init__(self, module: nn.Module, **given: Any) -> None:
        self.is_transposed, self.has_bias = True, False
        self._module = module
        self.__dict__ |= given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def _apply_gate(self, inner: torch.Tensor) -> torch.Tensor:
        gate, up = inner.chunk(2, dim=-1)
        return self.act_fn(gate) * up


def _experts(
    module: Any, hidden: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Return what the experts of a module make of `hidden` (tokens, width).

    Args:
        module: Holds the weights of all experts, `(experts, in, out)` if transposed.
        hidden: Of all tokens.
        top_k_index: The experts of each token, `(tokens, top_k)`.
        top_k_weights: And the weight of each.
    """
    rows, ends = torch.ops.wattree.dispatch(hidden, top_k_index, module.num_experts)
    is_gated = getattr(module, "has_gate", True)  # the first releases have nothing else
    up = "gate_up_proj" if is_gated else "up_proj"
    inner = _matmul(module, up, rows, ends, top_k_index)
    inner = module._apply_gate(inner) if is_gated else module.act_fn(inner)
    out = _matmul(module, "down_proj", inner, ends, top_k_index)
    if getattr(module, "has_post_expert_norm", False):
        out = module.post_expert_norm(out)
    return torch.ops.wattree.combine(out, top_k_weights, top_k_index).to(hidden.dtype)


def _matmul(
    module: Any, name: str, rows: torch.Tensor, ends: torch.Tensor, index: torch.Tensor
) -> torch.Tensor:
    flat = moe._grouped_linear(
        rows.flatten(0, 1), getattr(module, name), ends, is_transposed=module.is_transposed
    )
    out = flat.unflatten(0, rows.shape[:2])
    if module.has_bias:
        out = torch.ops.wattree.expert_bias(out, getattr(module, f"{name}_bias"), index)
    return out


@torch.library.custom_op("wattree::dispatch", mutates_args=())
def _dispatch(
    hidden: torch.Tensor, index: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = hidden[index.flatten().argsort() // index.shape[1]]
    counts = torch.bincount(index.flatten(), minlength=experts)
    return rows.view(*index.shape, -1), counts.cumsum(0).to(torch.int32)


@_dispatch.register_fake
def _(hidden, index, experts):  # type: ignore[no-untyped-def]
    return (
        hidden.new_empty((*index.shape, hidden.shape[-1])),
        index.new_empty((experts,), dtype=torch.int32),
    )


@shapes_of("dispatch_backward", "(Tensor gradient, Tensor index) -> Tensor", runs=True)
def _(gradient, index):  # type: ignore[no-untyped-def]
    return gradient.new_empty((gradient.shape[0], gradient.shape[-1]))


@torch.library.custom_op("wattree::combine", mutates_args=())
def _combine(rows: torch.Tensor, weights: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return (_sent_back(rows, index) * weights.unsqueeze(-1)).sum(1).to(rows.dtype)


@_combine.register_fake
def _(rows, weights, index):  # type: ignore[no-untyped-def]
    return rows.new_empty((rows.shape[0], rows.shape[-1]))


@shapes_of(
    "combine_backward",
    "(Tensor gradient, Tensor rows, Tensor weights, Tensor index) -> (Tensor, Tensor)",
    runs=True,
)
def _(gradient, rows, weights, index):  # type: ignore[no-untyped-def]
    return torch.empty_like(rows), torch.empty_like(weights)


@torch.library.custom_op("wattree::expert_bias", mutates_args=())
def _bias(rows: torch.Tensor, bias: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return rows + bias[index.flatten().sort().values].view_as(rows)


@_bias.register_fake
def _(rows, bias, index):  # type: ignore[no-untyped-def]
    return torch.empty_like(rows)


@shapes_of(
    "expert_bias_backward",
    "(Tensor gradient, Tensor index, int experts) -> (Tensor, Tensor)",
    runs=True,
)
def _(gradient, index, experts):  # type: ignore[no-untyped-def]
    return torch.empty_like(gradient), gradient.new_empty((experts, gradient.shape[-1]))


def _sent_back(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return rows that are sorted by expert in the order of their tokens, `(tokens, top_k, _)`."""
    return rows.flatten(0, 1)[index.flatten().argsort().argsort()].view_as(rows)


def _save_dispatch(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.mark_non_differentiable(output[1])


def _derive_dispatch(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
    return torch.ops.wattree.dispatch_backward(gradient, *ctx.saved_tensors), None, None


def _save_combine(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _derive_combine(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    return *torch.ops.wattree.combine_backward(gradient, *ctx.saved_tensors), None


def _save_bias(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.experts = inputs[1].shape[0]
    ctx.save_for_backward(inputs[2])


def _derive_bias(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    (index,) = ctx.saved_tensors
    return *torch.ops.wattree.expert_bias_backward(gradient, index, ctx.experts), None


_dispatch.register_autograd(_derive_dispatch, setup_context=_save_dispatch)
_combine.register_autograd(_derive_combine, setup_context=_save_combine)
_bias.register_autograd(_derive_bias, setup_context=_save_bias)
