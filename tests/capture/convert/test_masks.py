"""Which masks of attention are causal: a triangle over all positions, made in any way, alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional

from wattree.capture import capture_module
from wattree.capture.convert import model_graph
from wattree.graph import Operator, OperatorKind

N = 16  # positions


class _Attention(nn.Module):
    """Self-attention of 2 heads under a mask, which is made of the positions' numbers."""

    def __init__(self, mask: Callable[[int], torch.Tensor] | None, *, causal: bool = False) -> None:
        super().__init__()
        self.a, self.mask, self.causal = nn.Linear(8, 8), mask, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values under attention."""
        y = self.a(x).unflatten(-1, (2, 4)).transpose(1, 2)
        mask = None if self.mask is None else self.mask(x.shape[1])
        return functional.scaled_dot_product_attention(y, y, y, mask, is_causal=self.causal)


def attention(mask: Callable[[int], Any] | None, *, causal: bool = False) -> Operator:
    """Return the operator that attention became."""
    made = capture_module(
        lambda: _Attention(mask, causal=causal), inputs=["float32[batch, seq, 8]"], sequence=N
    )
    (found,) = (
        operator
        for block in model_graph(made).blocks.values()
        for operator in block.operators
        if operator.kind is OperatorKind.ATTENTION
    )
    return found


def whole(n: int) -> torch.Tensor:
    """Return a mask that hides nothing."""
    return torch.ones(n, n, dtype=torch.bool)


def numbers(n: int) -> torch.Tensor:
    """Return the positions' numbers as a column."""
    return torch.arange(n)[:, None]


CAUSAL: dict[str, Callable[[int], Any]] = {
    "tril": lambda n: whole(n).tril(),
    "not triu": lambda n: ~whole(n).triu(1),
    "added": lambda n: torch.full((n, n), float("-inf")).triu(1),
    "PyTorch's own": nn.Transformer.generate_square_subsequent_mask,
    "filled": lambda n: torch.zeros(n, n).masked_fill(whole(n).tril() == 0, float("-inf")),
    "compared": lambda n: numbers(n) >= numbers(n).T,
    "compared, shifted alike": lambda n: numbers(n) + 3 >= numbers(n).T + 3,
    "and padding": lambda n: whole(n).tril() & (torch.arange(n) < n - 2),
}
WHOLE: dict[str, Callable[[int], Any]] = {
    "a wide band": lambda n: whole(n).tril(100).triu(-100),
    "added zeros": lambda n: torch.zeros(n, n).tril(),
    "added ones": lambda n: torch.ones(n, n).tril(),
    "a shifted triangle": lambda n: whole(n).tril(3),
    "a band by distance": lambda n: (numbers(n).T - numbers(n)).abs() <= 100,
    "compared, shifted": lambda n: numbers(n) + 100 >= numbers(n).T,
    "padding": lambda n: (torch.arange(n) < n - 2).expand(n, n),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_triangle_is_causal(name: str) -> None:
    """And is not read: the kernel knows it."""
    hidden = torch.ones(N, N, dtype=torch.bool).triu(1)
    mask = CAUSAL[name](N)
    shown = mask if mask.dtype == torch.bool else mask == 0
    assert not (shown & hidden).any()

    found = attention(CAUSAL[name])

    assert found.mask is not None
    assert found.mask.causal
    assert len(found.inputs) == 3


@pytest.mark.parametrize("name", WHOLE)
def test_other_masks_take_nothing_off(name: str) -> None:
    """Each shows some later position to an earlier one; the mask is read."""
    mask = WHOLE[name](N)
    shown = mask if mask.dtype == torch.bool else mask > -1
    assert shown.triu(1).any()

    found = attention(WHOLE[name])

    assert found.mask is not None
    assert not found.mask.causal
    assert len(found.inputs) == 4


class _Sparse(_Attention):
    """Attention of which an indexer, compared in fp32 and without gradients, picks the keys."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values under attention to the best of the earlier positions."""
        with torch.no_grad():
            of_index = self.a(x).float()
            hidden = whole(x.shape[1]).triu(1)
            scores = (of_index @ of_index.mT).masked_fill(hidden, float("-inf"))
            shown = torch.zeros_like(scores, dtype=torch.bool)
            shown = shown.scatter(-1, scores.topk(2).indices, value=True)
        self.mask = lambda _: (shown & ~hidden)[:, None]
        return super().forward(x)


def test_what_an_indexer_selects_is_read_and_its_work_counts() -> None:
    """Its mask hides later positions, too; and no activation is in its fp32."""
    made = capture_module(
        lambda: _Sparse(None).bfloat16(), inputs=["bfloat16[batch, seq, 8]"], sequence=16 * N
    )
    operators = [op for block in model_graph(made).blocks.values() for op in block.operators]
    (core,) = (op for op in operators if op.kind is OperatorKind.ATTENTION)

    assert core.mask is not None
    assert core.mask.causal
    assert len(core.inputs) == 4
    assert [op.kind for op in operators].count(OperatorKind.MATMUL) == 3
    assert core.inputs[0].element_bytes is None


@pytest.mark.parametrize("causal", [False, True])
def test_the_flag_alone(causal: bool) -> None:  # noqa: FBT001
    """Nothing else says it where there is no mask."""
    found = attention(None, causal=causal)

    assert found.mask is not None
    assert found.mask.causal is causal
