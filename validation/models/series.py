"""Networks of series in plain PyTorch, for `validation/reports_science.yaml`.

Temporal fusion transformer (arXiv:1912.09363) and autoencoder of users' choices (VAE-CF,
arXiv:1802.05814) with the sizes of github:NVIDIA/DeepLearningExamples, TimesFM (arXiv:2310.10688)
and Enformer (doi:10.1038/s41592-021-01252-x).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class _Gate(nn.Module):
    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(self.linear(x))


class _Gated(nn.Module):
    """A gated residual network."""

    def __init__(
        self, inputs: int, width: int, outputs: int | None = None, *, context: bool = False
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.context = nn.Linear(width, width, bias=False) if context else None
        self.gate, self.dropout = _Gate(width, outputs or width), nn.Dropout(0.1)
        self.bypass = nn.Linear(inputs, outputs) if outputs else None
        self.norm = nn.LayerNorm(outputs or width) if outputs != 1 else nn.Identity()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        y = self.first(x)
        if context is not None and self.context is not None:
            y = y + self.context(context)[:, None]
        y = self.gate(self.dropout(self.second(functional.elu(y))))
        return self.norm(y + (x if self.bypass is None else self.bypass(x)))


class _Selected(nn.Module):
    """A weighted sum of variables."""

    def __init__(self, width: int, variables: int, *, context: bool = True) -> None:
        super().__init__()
        self.joint = _Gated(width * variables, width, variables, context=context)
        self.each = nn.ModuleList(_Gated(width, width) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        weights = self.joint(x.flatten(-2), context).softmax(dim=-1)
        parts = [one(x[..., i, :]) for i, one in enumerate(self.each)]
        return (torch.stack(parts, dim=-1) @ weights[..., None]).squeeze(-1)


class _Tft(nn.Module):
    def __init__(self, width: int, heads: int, known: int, length: int, past: int) -> None:
        super().__init__()
        self.past, self.heads, self.size = past, heads, width // heads
        self.id = nn.Embedding(369, width)
        self.known = nn.Parameter(torch.zeros(known, width))
        self.known_bias = nn.Parameter(torch.zeros(known, width))
        self.value = nn.Parameter(torch.zeros(1, width))
        self.value_bias = nn.Parameter(torch.zeros(1, width))
        self.static = _Selected(width, 1, context=False)
        self.contexts = nn.ModuleList(_Gated(width, width) for _ in range(4))
        self.history, self.future = _Selected(width, known + 1), _Selected(width, known)
        self.encoder = nn.LSTM(width, width, batch_first=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.enriched = _Gated(width, width, context=True)
        self.qkv = nn.Linear(width, (2 * heads + 1) * self.size, bias=False)
        self.out = nn.Linear(self.size, width, bias=False)
        self.place = _Gated(width, width)
        self.gates = nn.ModuleList(_Gate(width, width) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout, self.quantiles = nn.Dropout(0.1), nn.Linear(width, 3)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, ids: Tensor, known: Tensor, values: Tensor) -> Tensor:
        static = self.static(self.id(ids)[:, None])
        select, enrich, hidden, cell = (one(static) for one in self.contexts)
        known = known[..., None] * self.known + self.known_bias
        target = values[..., None] * self.value + self.value_bias
        before = torch.cat([known[:, : self.past], target[:, : self.past]], dim=-2)
        before = self.history(before, select)
        history, state = self.encoder(before, (hidden[None], cell[None]))
        after = self.future(known[:, self.past :], select)
        future, _ = self.decoder(after, state)
        x = self.gates[0](torch.cat([history, future], dim=1))
        x = self.norms[0](x + torch.cat([before, after], dim=1))
        rich = self.enriched(x, enrich)
        sizes = (self.heads * self.size, self.heads * self.size, self.size)
        q, k, v = self.qkv(rich).split(sizes, dim=-1)
        q, k = (one.unflatten(-1, (self.heads, self.size)) for one in (q, k))
        scores = q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) * self.size**-0.5 + self.mask
        mixed = (scores.softmax(dim=-1) @ v[:, None]).mean(dim=1)
        y = self.dropout(self.out(mixed))[:, self.past :]
        y = self.norms[1](self.gates[1](y) + rich[:, self.past :])
        y = self.norms[2](self.gates[2](self.place(y)) + x[:, self.past :])
        error = values[:, self.past :] - self.quantiles(y)
        return torch.maximum(0.9 * error, -0.1 * error).mean()


def tft(known: int = 3) -> nn.Module:
    """Return the temporal fusion transformer for 168 known hours and 24 to come."""
    return _Tft(128, 4, known, 192, 168)


class _Choices(nn.Module):
    def __init__(self, items: int = 20108) -> None:
        super().__init__()
        self.first, self.code = nn.Linear(items, 600), nn.Linear(600, 400)
        self.back, self.last = nn.Linear(200, 600), nn.Linear(600, items)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        y = functional.dropout(functional.normalize(x, dim=1), 0.5)
        mean, log = self.code(torch.tanh(self.first(y))).chunk(2, dim=1)
        found = self.last(torch.tanh(self.back(mean + noise * (0.5 * log).exp())))
        loss = -(found.log_softmax(dim=1) * x).sum(dim=1).mean()
        return loss + 0.1 * (log.exp() + mean.square() - log - 1).sum(dim=1).mean()


def choices() -> nn.Module:
    """Return VAE-CF for MovieLens 20M: 20,108 films, 600 and 200 values."""
    return _Choices()


class _Layer(nn.Module):
    """A layer of a transformer with norms before attention and MLP."""

    def __init__(self, width: int, heads: int, ffn: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*qkv.unbind(), is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.relu(self.up(self.norm2(x))))


class _Residual(nn.Module):
    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.bypass = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.up(x))) + self.bypass(x)


class _TimesFm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = _Residual(64, 1280, 1280), _Residual(1280, 1280, 128)
        self.layers = nn.ModuleList(_Layer(1280, 16, 1280, causal=True) for _ in range(20))

    def forward(self, patches: Tensor, target: Tensor) -> Tensor:
        x = self.before(patches)
        for layer in self.layers:
            x = layer(x)
        return (self.after(x) - target).square().mean()


def timesfm() -> nn.Module:
    """Return TimesFM of 200 million parameters: patches of 32 values and as many flags."""
    return _TimesFm()


class _Pooled(nn.Module):
    """Attention over pairs of neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pairs = x.transpose(1, 2).unflatten(1, (-1, 2))
        return (pairs * self.weigh(pairs).softmax(dim=2)).sum(dim=2).transpose(1, 2)


class _Normed(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int) -> None:
        super().__init__(
            nn.BatchNorm1d(inputs),
            nn.GELU("tanh"),
            nn.Conv1d(inputs, outputs, size, padding=size // 2),
        )


class _Relative(nn.Module):
    """Attention with keys of relative distances, of 64 values a head, and values of 192."""

    def __init__(self, width: int, heads: int, features: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = (nn.Linear(width, heads * 64, bias=False) for _ in range(2))
        self.value, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.distance = nn.Linear(features, heads * 64, bias=False)
        self.content, self.place = (nn.Parameter(torch.zeros(heads, 1, 64)) for _ in range(2))
        self.register_buffer("features", torch.zeros(2 * length - 1, features))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, length = q * 64**-0.5, x.shape[1]
        far = self.distance(self.features).unflatten(-1, (self.heads, 64)).permute(1, 2, 0)
        by_place = (q + self.place) @ far
        by_place = functional.pad(by_place, (1, 0)).flatten(2)[:, :, length:]
        by_place = by_place.unflatten(2, (length, 2 * length - 1))[..., :length]
        scores = (q + self.content) @ k.transpose(-1, -2) + by_place
        y = functional.dropout(scores.softmax(dim=-1), 0.05) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class _Enformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (768, 768, 896, 1024, 1152, 1280, 1536)
        self.first = nn.Conv1d(4, 768, 15, padding=7)
        self.wide = nn.ModuleList(
            _Normed(a, b, 5 if i else 1)
            for i, (a, b) in enumerate(zip((768, *widths), widths, strict=False))
        )
        self.narrow = nn.ModuleList(_Normed(width, width, 1) for width in widths[1:])
        self.pools = nn.ModuleList(_Pooled(width) for width in widths)
        self.attends, self.mlps = nn.ModuleList(), nn.ModuleList()
        for _ in range(11):
            parts = (nn.LayerNorm(1536), _Relative(1536, 8, 192, 1536), nn.Dropout(0.4))
            self.attends.append(nn.Sequential(*parts))
            parts = (nn.LayerNorm(1536), nn.Linear(1536, 3072), nn.Dropout(0.4), nn.ReLU())
            self.mlps.append(nn.Sequential(*parts, nn.Linear(3072, 1536), nn.Dropout(0.4)))
        self.last, self.head = _Normed(1536, 3072, 1), nn.Linear(3072, 5313)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.first(x)
        x = self.pools[0](x + self.wide[0](x))
        for wide, narrow, pool in zip(self.wide[1:], self.narrow, self.pools[1:], strict=True):
            x = wide(x)
            x = pool(x + narrow(x))
        x = x.transpose(1, 2)
        for attend, mlp in zip(self.attends, self.mlps, strict=True):
            x = x + attend(x)
            x = x + mlp(x)
        x = functional.gelu(self.last(x[:, 320:-320].transpose(1, 2)).transpose(1, 2))
        y = functional.softplus(self.head(x))
        return (y - target * torch.log(y + 1e-6)).mean()


def enformer() -> nn.Module:
    """Return Enformer on 196,608 bases with the head of human tracks."""
    return _Enformer()
