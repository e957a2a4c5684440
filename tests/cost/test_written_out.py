"""Bytes and kernels of written-out functions are those of the transformers library's modules."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cost.counted_steps import counted
from wattree.cost.written_out import steps_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

_ROWS, _HEADS, _WIDTH = 64, 4, 64


def _norm() -> tuple[Callable[..., Any], list[Any], float]:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    rows = torch.randn(_ROWS, 4096, dtype=torch.bfloat16)
    return LlamaRMSNorm(4096).to(torch.bfloat16), [rows], 2.0 * rows.numel()


def _rotation() -> tuple[Callable[..., Any], list[Any], float]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    shape = (64, _HEADS, _ROWS, _WIDTH)
    query, key = (torch.randn(shape, dtype=torch.bfloat16) for _ in range(2))
    angles = torch.randn(1, _ROWS, _WIDTH, dtype=torch.bfloat16)
    return (
        lambda query, key: apply_rotary_pos_emb(query, key, angles, angles),
        [query, key],
        2.0 * (query.numel() + key.numel()),
    )


def _wide_rotation() -> tuple[Callable[..., Any], list[Any], float]:
    from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

    _, inputs, elements = _rotation()
    angles = torch.randn(1, _ROWS, _WIDTH, dtype=torch.bfloat16)
    return lambda query, key: apply_rotary_pos_emb(query, key, angles, angles), inputs, elements


def _gate() -> tuple[Callable[..., Any], list[Any], float]:
    gate, up = (torch.randn(_ROWS, 4096, dtype=torch.bfloat16) for _ in range(2))
    silu = torch.nn.functional.silu
    return lambda gate, up: silu(gate) * up, [gate, up], 3.0 * gate.numel()


def _gated_gelu() -> tuple[Callable[..., Any], list[Any], float]:
    act, (rows,), _ = _gelu()
    up = torch.randn_like(rows)
    return lambda rows, up: act(rows) * up, [rows, up], 3.0 * rows.numel()


def _clamped_gate() -> tuple[Callable[..., Any], list[Any], float]:
    experts = importlib.import_module("transformers.models.gpt_oss.modeling_gpt_oss").GptOssExperts
    settings = SimpleNamespace(alpha=1.702, limit=7.0)
    rows = torch.randn(_ROWS, 2 * 4096, dtype=torch.bfloat16)
    return partial(experts._apply_gate, settings), [rows], 1.5 * rows.numel()


def _gelu() -> tuple[Callable[..., Any], list[Any], float]:
    from transformers.activations import ACT2FN

    rows = torch.randn(_ROWS, 4096, dtype=torch.bfloat16)
    return ACT2FN["gelu_new"], [rows], 2.0 * rows.numel()


def _softcap() -> tuple[Callable[..., Any], list[Any], float]:
    rows = torch.randn(_ROWS, 4096, dtype=torch.bfloat16)
    return lambda rows: torch.tanh(rows / 30.0) * 30.0, [rows], 2.0 * rows.numel()


def _xielu() -> tuple[Callable[..., Any], list[Any], float]:
    from transformers.activations import ACT2FN

    rows = torch.randn(_ROWS, 4096, dtype=torch.bfloat16)
    return ACT2FN["xielu"].to(torch.bfloat16), [rows], 2.0 * rows.numel()


def _of_library(path: str, name: str) -> Callable[[], tuple[Callable[..., Any], list[Any], float]]:
    def made() -> tuple[Callable[..., Any], list[Any], float]:
        module = importlib.import_module(f"transformers.models.{path}")
        rows = torch.randn(_ROWS, 4096, dtype=torch.bfloat16)
        norm = getattr(module, name)(4096).to(torch.bfloat16)
        return norm, [rows], 2.0 * rows.numel()

    return made


@pytest.mark.parametrize(
    ("function", "made"),
    [
        ("rms_norm", _norm),
        ("rms_norm_fp32", _of_library("olmo2.modeling_olmo2", "Olmo2RMSNorm")),
        ("layer_norm_fp32", _of_library("olmo.modeling_olmo", "OlmoLayerNorm")),
        ("layer_norm_fp32_steps", _of_library("cohere.modeling_cohere", "CohereLayerNorm")),
        ("rotary", _rotation),
        ("rotary_wide", _wide_rotation),
        ("silu_gate", _gate),
        ("silu_clamped_gate", _clamped_gate),
        ("gelu_new", _gelu),
        ("gelu_new_gate", _gated_gelu),
        ("xielu", _xielu),
        ("softcap", _softcap),
    ],
)
def test_steps_are_those_of_the_modules(
    function: str, made: Callable[[], tuple[Callable[..., Any], list[Any], float]]
) -> None:
    """Forward and backward, by element that one kernel would read or write."""
    steps = steps_of(function)
    assert steps is not None
    act, inputs, elements = made()
    inputs = [each.requires_grad_() for each in inputs]

    results, forward, launched = counted(lambda: act(*inputs))
    results = results if isinstance(results, tuple) else (results,)
    gradients = [torch.randn_like(each) for each in results]
    _, backward, launched_back = counted(lambda: torch.autograd.backward(results, gradients))

    assert forward / elements == pytest.approx(steps.forward_bytes, rel=0.02)
    assert backward / elements == pytest.approx(steps.backward_bytes, rel=0.02)
    assert launched == steps.forward_kernels * len(results)
    assert launched_back == pytest.approx(steps.backward_kernels * len(results), abs=2)


def _gelu_of_powers(x: Any) -> Any:
    """Return `gelu_new` as CUDA runs it under autocast: powers, and what follows, in fp32."""
    powers = torch.pow(x.float(), 3.0)
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * powers)))


@pytest.mark.parametrize("function", ["rms_norm", "rotary", "silu_gate", "gelu_new"])
def test_autocast_widens_what_follows_fp32(function: str) -> None:
    """Of forward and backward together; a norm reads fp32, and so need not cast."""
    steps = steps_of(function)
    assert steps is not None
    if function == "rms_norm":
        act, (rows,), elements = _norm()
        act, inputs = act.float(), [rows.float()]  # type: ignore[attr-defined]
    elif function == "rotary":
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        _, inputs, elements = _rotation()
        angles = torch.randn(1, _ROWS, _WIDTH)
        act = lambda q, k: apply_rotary_pos_emb(q, k, angles, angles)  # noqa: E731
    elif function == "silu_gate":
        act, inputs, elements = _gate()
    else:
        _, inputs, elements = _gelu()
        act = _gelu_of_powers
    inputs = [each.requires_grad_() for each in inputs]

    with torch.autocast("cpu", torch.bfloat16):
        results, forward, _ = counted(lambda: act(*inputs))
    results = results if isinstance(results, tuple) else (results,)
    gradients = [torch.randn_like(each) for each in results]
    _, backward, _ = counted(lambda: torch.autograd.backward(results, gradients))

    narrow = steps.forward_bytes + steps.backward_bytes
    assert (forward + backward) / elements / narrow == pytest.approx(steps.under_autocast, rel=0.1)


def test_other_functions_are_one_kernel() -> None:
    """Such as those of the library itself."""
    assert steps_of("layer_norm") is None
    assert steps_of("add") is None
