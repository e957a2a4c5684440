"""AlphaFold 2 (doi:10.1038/s41586-021-03819-2) in plain PyTorch, for `reports_science.yaml`.

The stacks and the structure module as OpenFold trains them: each block is checkpointed, and passes
that only recycle keep nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class _Attention(nn.Module):
    """Gated attention along the dim before the last, with a bias of pairs on request."""

    def __init__(self, width: int, heads: int, size: int, pair: int | None = None) -> None:
        super().__init__()
        self.heads, self.size, inner = heads, size, heads * size
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(width, inner), nn.Linear(inner, width)
        self.pair_norm = nn.LayerNorm(pair) if pair else None
        self.pair = nn.Linear(pair, heads, bias=False) if pair else None

    def forward(self, x: Tensor, pair: Tensor | None = None) -> Tensor:
        x = self.norm(x)
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, self.size)).transpose(-2, -3)
            for layer in (self.q, self.k, self.v)
        )
        scores = (q * self.size**-0.5) @ k.transpose(-1, -2)
        if self.pair is not None and self.pair_norm is not None and pair is not None:
            bias = self.pair(self.pair_norm(pair))
            scores = scores + bias.movedim(-1, -3).unsqueeze(-4)
        y = (scores.softmax(dim=-1) @ v).transpose(-2, -3).flatten(-2)
        return self.out(y * torch.sigmoid(self.gate(x)))


class _Product(nn.Module):
    def __init__(self, width: int, *, outgoing: bool) -> None:
        super().__init__()
        self.norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.a, self.b, self.a_gate, self.b_gate, self.out, self.gate = (
            nn.Linear(width, width) for _ in range(6)
        )
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        a = torch.sigmoid(self.a_gate(x)) * self.a(x)
        b = torch.sigmoid(self.b_gate(x)) * self.b(x)
        y = torch.einsum(self.equation, a, b)
        return self.out(self.out_norm(y)) * torch.sigmoid(self.gate(x))


class _Transition(nn.Module):
    def __init__(self, width: int, factor: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, factor * width), nn.Linear(factor * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.relu(self.up(self.norm(x))))


class _Pairs(nn.Module):
    def __init__(self, width: int, size: int, factor: int) -> None:
        super().__init__()
        self.outgoing, self.incoming = (_Product(width, outgoing=way) for way in (True, False))
        self.start, self.end = (_Attention(width, 4, size, width) for _ in range(2))
        self.transition = _Transition(width, factor)

    def forward(self, z: Tensor) -> Tensor:
        z = z + functional.dropout(self.outgoing(z), 0.25)
        z = z + functional.dropout(self.incoming(z), 0.25)
        z = z + functional.dropout(self.start(z, z), 0.25)
        z = z + functional.dropout(
            self.end(z.transpose(1, 2), z.transpose(1, 2)).transpose(1, 2), 0.25
        )
        return z + self.transition(z)


class _Mean(nn.Module):
    """The attention of extra sequences along columns: one mean query for all."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.norm, self.q = nn.LayerNorm(width), nn.Linear(width, heads * size, bias=False)
        self.k, self.v = (nn.Linear(width, size, bias=False) for _ in range(2))
        self.gate, self.out = nn.Linear(width, heads * size), nn.Linear(heads * size, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q = self.q(x.mean(dim=2)).unflatten(-1, (self.heads, self.size)) * self.size**-0.5
        weights = (q @ self.k(x).transpose(-1, -2)).softmax(dim=-1)
        mixed = weights @ self.v(x)
        gate = torch.sigmoid(self.gate(x)).unflatten(-1, (self.heads, self.size))
        return self.out((gate * mixed.unsqueeze(2)).flatten(-2))


class _Block(nn.Module):
    """A block of the Evoformer, or of the stack of extra sequences."""

    def __init__(self, width: int, size: int, *, extra: bool) -> None:
        super().__init__()
        self.row = _Attention(width, 8, size, 128)
        self.column = _Mean(width, 8, size) if extra else _Attention(width, 8, size)
        self.transition, self.norm = _Transition(width), nn.LayerNorm(width)
        self.a, self.b = nn.Linear(width, 32), nn.Linear(width, 32)
        self.outer, self.pairs = nn.Linear(1024, 128), _Pairs(128, 32, 4)

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + functional.dropout(self.row(m, z), 0.15)
        m = m + self.column(m.transpose(1, 2)).transpose(1, 2)
        m = m + self.transition(m)
        y = self.norm(m)
        outer = torch.einsum("bsic,bsjd->bijcd", self.a(y), self.b(y)) / m.shape[1]
        return m, self.pairs(z + self.outer(outer.flatten(-2)))


class _Points(nn.Module):
    """Invariant point attention: 12 heads of 16 values, 4 query and 8 value points."""

    def __init__(self) -> None:
        super().__init__()
        self.scalars = nn.Linear(384, 3 * 12 * 16)
        self.points, self.pair = nn.Linear(384, 12 * (4 + 4 + 8) * 3), nn.Linear(128, 12)
        self.weights = nn.Parameter(torch.zeros(12, 1, 1))
        self.out = nn.Linear(12 * (16 + 8 * 4 + 128), 384)

    def forward(self, s: Tensor, z: Tensor, turn: Tensor, shift: Tensor) -> Tensor:
        q, k, v = self.scalars(s).unflatten(-1, (3, 12, 16)).permute(2, 0, 3, 1, 4).unbind()
        points = self.points(s).unflatten(-1, (192, 3)) @ turn.transpose(-1, -2) + shift[:, :, None]
        points = points.unflatten(2, (12, 16)).transpose(1, 2)
        a, b, c = points.split((4, 4, 8), dim=3)
        far = (a[:, :, :, None] - b[:, :, None]).square().sum(dim=(-1, -2))
        scores = q @ k.transpose(-1, -2) * 16**-0.5 + self.pair(z).permute(0, 3, 1, 2)
        scores = (scores - functional.softplus(self.weights) * far).softmax(dim=-1)
        values = (scores @ v).transpose(1, 2).flatten(2)
        moved = (scores @ c.flatten(3)).unflatten(-1, (8, 3)).transpose(1, 2)
        moved = (moved - shift[:, :, None, None]) @ turn[:, :, None]
        size = (moved.square().sum(dim=-1) + 1e-8).sqrt()
        pairs = torch.einsum("bhij,bijc->bihc", scores, z).flatten(2)
        return self.out(torch.cat([values, moved.flatten(2), size.flatten(2), pairs], dim=-1))


class _Structure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.points, self.transition = _Points(), _Transition(384, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(384) for _ in range(2))
        self.update, self.angles = nn.Linear(384, 6), nn.Linear(384, 14)

    def forward(self, s: Tensor, z: Tensor, turn: Tensor, shift: Tensor) -> Tensor:
        loss = s.new_zeros(())
        for _ in range(8):
            s = self.norms[0](s + self.points(s, z, turn, shift))
            s = self.norms[1](s + self.transition(s))
            step = self.update(s)
            shift = shift + (turn @ step[..., 3:, None]).squeeze(-1)
            local = (shift[:, None] - shift[:, :, None]) @ turn
            loss = loss + local.square().sum(dim=-1).sqrt().mean() + self.angles(s).square().mean()
        return loss


class _Fold(nn.Module):
    def __init__(self, blocks: int, recycles: float) -> None:
        super().__init__()
        self.recycles = recycles
        self.msa, self.extra = nn.Linear(49, 256), nn.Linear(25, 64)
        self.left, self.right = nn.Linear(22, 128), nn.Linear(22, 128)
        self.template, self.to_pair = nn.Linear(88, 64), nn.Linear(64, 128)
        self.templates = nn.ModuleList(_Pairs(64, 16, 2) for _ in range(2))
        self.extras = nn.ModuleList(_Block(64, 8, extra=True) for _ in range(4))
        self.blocks = nn.ModuleList(_Block(256, 32, extra=False) for _ in range(blocks))
        self.single, self.structure = nn.Linear(256, 384), _Structure()
        self.distances, self.masked = nn.Linear(128, 64), nn.Linear(256, 23)

    def _pass(self, inputs: tuple[Tensor, ...], share: float = 1.0) -> tuple[Tensor, Tensor]:
        target, msa, extra, templates = inputs

        def run(block: nn.Module, *of: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            return checkpoint(block, *of, use_reentrant=False) if grad else block(*of)

        grad = torch.is_grad_enabled()
        z = self.left(target)[:, :, None] + self.right(target)[:, None]
        t = self.template(templates).flatten(0, 1)
        for block in self.templates:
            t = run(block, t)
        z = z + self.to_pair(t.unflatten(0, templates.shape[:2]).mean(dim=1))
        m, e = self.msa(msa), self.extra(extra)
        for block in self.extras:
            e, z = run(block, e, z)
        for block in self.blocks[: round(share * len(self.blocks))]:
            m, z = run(block, m, z)
        return m, z

    def forward(
        self,
        target: Tensor,
        msa: Tensor,
        extra: Tensor,
        templates: Tensor,
        turn: Tensor,
        at: Tensor,
    ) -> Tensor:
        inputs = (target, msa, extra, templates)
        with torch.no_grad():
            left = self.recycles
            while left > 0:
                self._pass(inputs, min(left, 1.0))
                left -= 1.0
        m, z = self._pass(inputs)
        loss = self.structure(self.single(m[:, 0]), z, turn, at)
        loss = loss - self.distances(z + z.transpose(1, 2)).log_softmax(dim=-1).mean()
        return loss - self.masked(m).log_softmax(dim=-1).mean()


def alphafold(blocks: int = 48, recycles: float = 1.5) -> nn.Module:
    """Return AlphaFold 2; passes that recycle are uniform from 0 to 3, so 1.5 in the mean."""
    return _Fold(blocks, recycles)
