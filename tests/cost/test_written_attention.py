"""Bytes of attention written out are those of the transformers library's modules."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.cost.counted_steps import counted
from wattree.cost.attention import written_score_bytes

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

#: Heads so narrow that little moves besides scores, and so many that the mask is little too.
_SAMPLES, _HEADS, _TOKENS, _WIDTH = 2, 32, 256, 1


def _of_library(path: str) -> Callable[..., Any]:
    return importlib.import_module(f"transformers.models.{path}").eager_attention_forward


def _under_autocast(
    _: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float
) -> tuple[Any, Any]:
    """Return what BERT's attention does where autocast runs softmax in fp32, and products not."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling + mask.float()
    found = torch.softmax(scores, dim=-1)
    return torch.matmul(found.to(query.dtype), value).transpose(1, 2).contiguous(), found


def _bytes_by_score(act: Callable[..., Any], width: Any, *, backward: bool) -> float:
    shape = (_SAMPLES, _HEADS, _TOKENS, _WIDTH)
    heads = [torch.randn(shape, dtype=width, requires_grad=True) for _ in range(3)]
    mask = torch.zeros(1, 1, _TOKENS, _TOKENS, dtype=width)
    module = torch.nn.Module()
    module.num_key_value_groups = 1
    (result, _), forward, _ = counted(lambda: act(module, *heads, mask, scaling=0.5))
    moved = forward
    if backward:
        gradient = torch.randn_like(result)
        _, moved, _ = counted(lambda: torch.autograd.backward(result, gradient))
    return moved / math.prod((_SAMPLES, _HEADS, _TOKENS, _TOKENS))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("act", "width", "autocast"),
    [
        (_of_library("llama.modeling_llama"), torch.bfloat16, False),
        (_of_library("bert.modeling_bert"), torch.bfloat16, False),
        (_of_library("gpt2.modeling_gpt2"), torch.bfloat16, False),
        (_under_autocast, torch.bfloat16, True),
        (_of_library("bert.modeling_bert"), torch.float32, False),
    ],
)
def test_scores_move_as_in_the_modules(
    act: Callable[..., Any], width: Any, *, autocast: bool, backward: bool
) -> None:
    """Product, scale, mask, softmax and its casts, product; and their gradients."""
    casts = act.__module__.rpartition("_")[2] not in {"bert", "gpt2"}
    expected = written_score_bytes(
        backward=backward,
        autocast=autocast,
        casts=casts,
        dropped=False,
        element_bytes=width.itemsize,
    )
    assert _bytes_by_score(act, width, backward=backward) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("width", "autocast"), [(torch.bfloat16, False), (torch.float32, True)])
def test_dropout_moves_as_the_one_kernel_of_a_gpu(width: Any, *, autocast: bool) -> None:
    """Scores in and out, and a mask of a byte; under autocast scores are in fp32 there."""
    scores = torch.randn(4096, dtype=width, requires_grad=True)
    result, forward, _ = counted(lambda: torch.native_dropout(scores, 0.1, True)[0])
    gradient = torch.ones_like(result)
    _, backward, _ = counted(lambda: result.backward(gradient))

    def dropout(*, is_backward: bool) -> float:
        with_it, without = (
            written_score_bytes(
                backward=is_backward,
                autocast=autocast,
                casts=True,
                dropped=dropped,
                element_bytes=2.0,
            )
            for dropped in (True, False)
        )
        return with_it - without

    assert forward / 4096 == dropout(is_backward=False)
    assert backward / 4096 == pytest.approx(dropout(is_backward=True))
