"""Small modules, each with one thing in it that makes capturing hard, and what becomes of each.

`test_cases.py` checks every line; `docs/capture_tables.py` writes them into docs/capture.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES", "Case"]

WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One module.

    Attributes:
        group, what: Head and line of the table.
        build: Makes the module.
        inputs: `(batch) → arguments`, or `(batch, sequence)` where `sequence` is given.
        sequence: Tokens per sample.
        flop: Forward FLOP at batch 2, where supported.
        backward_flop: Of input and weight gradients, at batch 2.
        operators: Some of the operators that must be recorded.
        values: Run on real values, with a warning.
        refusal: Words of the message, where it is refused.
        advice: What the table says to do, or how it is recorded.
    """

    group: str
    what: str
    build: Callable[[], Any]
    inputs: Callable[..., tuple[Any, ...]]
    sequence: int | None = None
    flop: int | None = None
    backward_flop: tuple[int, int] | None = None
    operators: tuple[str, ...] = ()
    values: bool = False
    refusal: str = ""
    advice: str = ""


def linear(width: int = WIDTH) -> nn.Linear:
    """Return a layer of 2 · 8 · 8 FLOP per row."""
    return nn.Linear(WIDTH, width)


class Calls(nn.Module):
    """A module whose forward is a function of it and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the function returns."""
        return self.function(self, *inputs, **named)


def one(function: Callable[..., Any], **parts: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Return a builder of a module with a layer `a` and other parts."""
    return lambda: Calls(function, a=linear(), **{name: part() for name, part in parts.items()})


def rows(batch: int) -> tuple[torch.Tensor]:
    """Return `batch` rows."""
    return (torch.randn(batch, WIDTH),)


def tokens(batch: int, sequence: int) -> tuple[torch.Tensor]:
    """Return rows of `sequence` positions."""
    return (torch.randn(batch, sequence, WIDTH),)


def images(rank: int) -> Callable[[int], tuple[torch.Tensor]]:
    """Return what makes four channels of 8 positions along each of `rank` dims."""
    return lambda batch: (torch.randn(batch, 4, *(8,) * rank),)


@dataclass
class Features:
    """Inputs of a module as a dataclass."""

    dense: torch.Tensor
    mask: torch.Tensor | None = None


class Scaled(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return `x W`."""
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both gradients, whether they are needed or not."""
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


class Constants(nn.Module):
    """Tensors in plain attributes and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale, self.shifts = linear(), torch.arange(8.0), [torch.ones(8)]
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of them, and write a buffer."""
        self.calls += 1
        return self.a(x) * self.scale + self.shifts[0]


def _tied() -> nn.Module:
    model = nn.Sequential(linear(), linear())
    model[1].weight = model[0].weight
    return model


def _shared() -> nn.Module:
    layer = linear()
    return nn.Sequential(layer, nn.ReLU(), layer)


def _frozen() -> nn.Module:
    return nn.Sequential(linear().requires_grad_(False), linear())


def _penalised(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Return a loss with the gradient of a result in it."""
    x = x.detach().requires_grad_()
    y = torch.tanh(self.a(x))
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.sum() + slope.square().sum()


def _region(reentrant: bool) -> Callable[[], nn.Module]:  # noqa: FBT001
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        def inner(y: torch.Tensor) -> torch.Tensor:
            return self.c(torch.relu(self.b(y)))

        return checkpoint(inner, self.a(x), use_reentrant=reentrant)

    return one(forward, b=linear, c=linear)


def _autocast(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return self.a(x)


def _in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.a(x)
    y[:, :4].mul_(2.0)
    return y.masked_fill_(y > 4, 4.0).relu_()


def _overwritten(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = self.a(x).exp()
    z = y.sum()
    y.add_(1)
    return z * y


def _routed(self: Any, x: torch.Tensor) -> torch.Tensor:
    chosen = self.gate(x).topk(2).indices
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        row, _ = torch.where(chosen == number)
        out = out.index_add(0, row, expert(x[row]))
    return out


def _mixture() -> nn.Module:
    experts = nn.ModuleList(linear() for _ in range(4))
    return Calls(_routed, gate=linear(4), experts=experts)


def _scattered(self: Any, x: torch.Tensor) -> torch.Tensor:
    places = torch.zeros(x.shape, dtype=torch.long)
    return torch.zeros_like(x).scatter_add(1, places, self.a(x)).gather(1, places)


def _packed(self: Any, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]


def _endless(self: Any, x: torch.Tensor) -> torch.Tensor:
    while True:
        x = self.a(x)


def _attention(self: Any, x: torch.Tensor) -> torch.Tensor:
    q = k = v = self.a(x)[:, None]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)


def _recurrent(kind: type[nn.Module], **keys: Any) -> Callable[[], nn.Module]:
    return lambda: Calls(
        lambda self, x: self.rnn(x)[0], rnn=kind(WIDTH, 6, batch_first=True, **keys)
    )


def _convolution(kind: type[nn.Module], **keys: Any) -> Callable[[], nn.Module]:
    return lambda: kind(4, 6, 3, groups=2, **keys)


CASES = (
    # ------------------------------------------------------------------------------ products
    Case(
        group="Products",
        what="`nn.Linear`, `F.linear`, `@`",
        build=linear,
        inputs=rows,
        flop=256,
        backward_flop=(0, 256),
        operators=("aten.addmm.default",),
    ),
    Case(
        group="Products",
        what="`einsum`, `bmm`, `baddbmm`",
        build=one(
            lambda self, x: torch.einsum("bi,bij->bj", self.a(x), x[:, :, None].repeat(1, 1, 3))
        ),
        inputs=rows,
        flop=256 + 2 * 2 * 8 * 3,
        operators=("aten.bmm.default",),
    ),
    Case(
        group="Products",
        what="matrix by vector (`mv`), `dot`",
        build=one(lambda self, x: torch.mv(self.a(x), x[0])),
        inputs=rows,
        flop=256 + 32,
        operators=("aten.mv.default",),
    ),
    Case(
        group="Products",
        what="`nn.Bilinear`",
        build=lambda: nn.Bilinear(3, 4, 5),
        inputs=lambda batch: (torch.randn(batch, 3), torch.randn(batch, 4)),
        flop=2 * 2 * 60,
        operators=("aten._trilinear.default",),
    ),
    *(
        Case(
            group="Convolutions",
            what=f"`Conv{rank}d`, grouped, strided, dilated",
            build=_convolution(kind, stride=2, padding=2, dilation=2),
            inputs=images(rank),
            flop=2 * 2 * 4**rank * 6 * 2 * 3**rank,
            backward_flop=(0, 2 * 2 * 4**rank * 6 * 2 * 3**rank),
            operators=("aten.convolution.default",),
        )
        for rank, kind in ((1, nn.Conv1d), (2, nn.Conv2d), (3, nn.Conv3d))
    ),
    *(
        Case(
            group="Convolutions",
            what=f"`ConvTranspose{rank}d`, grouped, strided",
            build=_convolution(kind, stride=2),
            inputs=images(rank),
            flop=2 * 2 * 8**rank * 4 * 3 * 3**rank,
            operators=("aten.convolution.default",),
        )
        for rank, kind in (
            (1, nn.ConvTranspose1d),
            (2, nn.ConvTranspose2d),
            (3, nn.ConvTranspose3d),
        )
    ),
    # ----------------------------------------------------------------------------- attention
    Case(
        group="Attention and recurrence",
        what="`F.scaled_dot_product_attention`, with any mask and dropout",
        build=one(_attention),
        inputs=tokens,
        sequence=16,
        flop=2 * 16 * 8 * 8 * 2 + 2 * (2 * 16 * 16 * 16),
        operators=("wattree.attention",),
        advice="one operator",
    ),
    Case(
        group="Attention and recurrence",
        what="`nn.MultiheadAttention`",
        build=lambda: Calls(
            lambda self, x: self.m(x, x, x, need_weights=False)[0],
            m=nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        ),
        inputs=tokens,
        sequence=16,
        flop=2 * 16 * (4 * 2 * 8 * 8) + 2 * (2 * 16 * 16 * 16),
        operators=("wattree.attention",),
    ),
    Case(
        group="Attention and recurrence",
        what="`nn.TransformerEncoder`, also in eval mode",
        build=lambda: (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True),
                2,
                enable_nested_tensor=False,
            )
            .eval()
            .requires_grad_(False)
        ),
        inputs=tokens,
        sequence=16,
        flop=2 * (2 * 16 * (4 * 2 * 64 + 2 * 2 * 8 * 16) + 2 * (2 * 16 * 16 * 16)),
        operators=("wattree.attention",),
    ),
    *(
        Case(
            group="Attention and recurrence",
            what=f"`nn.{kind.__name__}`" + (f" with {words}" if words else ""),
            build=_recurrent(kind, **keys),
            inputs=tokens,
            sequence=4,
            flop=2 * 2 * 4 * weights,
            operators=(f"wattree.{kind.__name__.lower()}",),
            advice="one operator",
        )
        for kind, words, keys, weights in (
            (nn.RNN, "", {"nonlinearity": "relu"}, 6 * 14),
            (nn.GRU, "", {}, 18 * 14),
            (nn.LSTM, "", {}, 24 * 14),
            (
                nn.LSTM,
                "layers, directions and dropout",
                {"num_layers": 2, "bidirectional": True, "dropout": 0.1},
                2 * (24 * 14 + 24 * 18),
            ),
            (nn.LSTM, "a projection", {"proj_size": 3}, 24 * (8 + 3) + 3 * 6),
        )
    ),
    Case(
        group="Attention and recurrence",
        what="packed sequences",
        build=lambda: Calls(_packed, rnn=nn.LSTM(WIDTH, 6)),
        inputs=lambda batch: (torch.randn(4, batch, WIDTH), torch.full((batch,), 4)),
        flop=2 * 2 * 4 * 24 * 14,
        operators=("wattree.lstm",),
        values=True,
        advice="lengths are those of the example",
    ),
    Case(
        group="Attention and recurrence",
        what="a Python loop over steps",
        build=one(lambda self, x: sum(self.a(x[:, step]) for step in range(x.shape[1]))),
        inputs=tokens,
        sequence=4,
        flop=2 * 4 * 128,
        advice="for the job's sequence length alone, with a warning",
    ),
    # --------------------------------------------------------------------------------- other
    Case(
        group="Other operators",
        what="normalization in train mode, pooling",
        build=lambda: nn.Sequential(nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.GroupNorm(2, 4)),
        inputs=images(2),
        flop=0,
        operators=("aten.native_batch_norm.default", "aten.max_pool2d_with_indices.default"),
    ),
    Case(
        group="Other operators",
        what="`nn.Embedding`, `nn.EmbeddingBag`, with `sparse=True` too",
        build=lambda: nn.EmbeddingBag(100, WIDTH, sparse=True),
        inputs=lambda batch: (torch.randint(0, 100, (batch, 4)),),
        flop=0,
        operators=("aten._embedding_bag.default",),
        advice="gradients are whole tables, with a warning, unless the trait `sparse_gradients` "
        "is set",
    ),
    Case(
        group="Other operators",
        what="gather, scatter, indexing by integers",
        build=one(_scattered),
        inputs=rows,
        flop=256,
        operators=("aten.scatter_add.default", "aten.gather.default"),
    ),
    Case(
        group="Other operators",
        what="FFT, complex tensors",
        build=one(lambda self, x: torch.fft.fft2(self.a(x)[None]).abs()),
        inputs=rows,
        flop=256,
        operators=("aten._fft_c2c.default",),
    ),
    # ---------------------------------------------------------------------------- structure
    Case(
        group="Structure",
        what="in-place operators, views, writes through views",
        build=one(_in_place),
        inputs=rows,
        flop=256,
        operators=("aten.relu_.default", "aten.masked_fill_.Scalar"),
    ),
    Case(
        group="Structure",
        what="`torch.utils.checkpoint`, reentrant",
        build=_region(reentrant=True),
        inputs=rows,
        flop=768,
        backward_flop=(512, 768),
    ),
    Case(
        group="Structure",
        what="`torch.utils.checkpoint`, not reentrant",
        build=_region(reentrant=False),
        inputs=rows,
        flop=768,
        backward_flop=(512, 768),
    ),
    Case(
        group="Structure",
        what="custom `autograd.Function`",
        build=lambda: Calls(
            lambda self, x: Scaled.apply(x, self.weight),
            weight=nn.Parameter(torch.empty(WIDTH, WIDTH)),
        ),
        inputs=rows,
        flop=256,
        backward_flop=(256, 256),
        advice="its backward is recorded",
    ),
    Case(group="Structure", what="tied parameters", build=_tied, inputs=rows, flop=512),
    Case(group="Structure", what="modules used twice", build=_shared, inputs=rows, flop=512),
    Case(
        group="Structure",
        what="frozen parameters",
        build=_frozen,
        inputs=rows,
        flop=512,
        backward_flop=(0, 256),
    ),
    Case(
        group="Structure",
        what="buffers, also written in forward; tensors in plain attributes and lists",
        build=Constants,
        inputs=rows,
        flop=256,
    ),
    Case(
        group="Structure",
        what="parametrised weights (weight and spectral norm)",
        build=lambda: nn.utils.parametrizations.weight_norm(linear()),
        inputs=rows,
        flop=256,
        backward_flop=(0, 256),
    ),
    Case(
        group="Structure",
        what="inputs and results as dicts, tuples, dataclasses, with `None` entries",
        build=one(lambda self, f: {"y": Features(self.a(f.dense)), "z": (None, f.dense)}),
        inputs=lambda batch: (Features(torch.randn(batch, WIDTH)),),
        flop=256,
    ),
    Case(
        group="Structure",
        what="`torch.autocast`",
        build=one(_autocast),
        inputs=rows,
        flop=256,
        operators=("aten._to_copy.default",),
        advice="the casts are recorded; precision is the job's",
    ),
    Case(
        group="Structure",
        what="`torch.vmap`",
        build=one(lambda self, x: torch.vmap(self.a)(x)),
        inputs=rows,
        flop=256,
    ),
    Case(
        group="Structure",
        what="`nn.DataParallel`, `DistributedDataParallel`, `torch.compile` around the model",
        build=lambda: nn.DataParallel(linear()),
        inputs=rows,
        flop=256,
        advice="the model inside is taken; replicas are the strategy's",
    ),
    Case(
        group="Structure",
        what="sizes such as `sequence + 1` (class tokens)",
        build=one(lambda self, x: self.a(torch.cat([x[:, :1], x], 1))),
        inputs=tokens,
        sequence=4,
        flop=2 * 5 * 128,
        advice="exact for the job's sequence length, with a warning",
    ),
    Case(
        group="Structure",
        what="a table of positions, as long as the sequence or longer",
        build=one(
            lambda self, x: self.a(x + self.table[: x.shape[1]]),
            table=lambda: nn.Parameter(torch.zeros(4, WIDTH)),
        ),
        inputs=tokens,
        sequence=4,
        flop=2 * 4 * 128,
        operators=("aten.slice.Tensor",),
    ),
    Case(
        group="Structure",
        what="gradients taken in forward (`torch.autograd.grad` in a loss)",
        build=one(_penalised),
        inputs=rows,
        flop=256 + 256,
        operators=("aten.tanh_backward.default",),
    ),
    # ------------------------------------------------------------------------------- values
    Case(
        group="Results that depend on values",
        what="`.item()`, `float(x)`, `if x.sum() > 0`",
        build=one(lambda self, x: self.a(x) * x.sum().item()),
        inputs=rows,
        flop=256,
        values=True,
    ),
    Case(
        group="Results that depend on values",
        what="`nonzero`, boolean indexing, `masked_select`",
        build=one(lambda self, x: self.a(x)[x > 0].sum()),
        inputs=rows,
        flop=256,
        values=True,
    ),
    Case(
        group="Results that depend on values",
        what="experts that are called one by one, on the rows that a top-k or argmax picks",
        build=_mixture,
        inputs=rows,
        # At 2 rows: a gate of 4 entries, and 2 experts a row.
        flop=2 * 2 * WIDTH * (4 + 2 * WIDTH),
        values=True,
        advice="rows are spread evenly over the experts",
    ),
    Case(
        group="Results that depend on values",
        what="`torch.unique`",
        build=one(lambda self, x: self.a(x).sum() * torch.unique(x).sum()),
        inputs=rows,
        flop=256,
        values=True,
    ),
    Case(
        group="Results that depend on values",
        what="`.numpy()`, `.tolist()`",
        build=one(lambda self, x: self.a(x) * float(x.detach().numpy().mean())),
        inputs=rows,
        flop=256,
        values=True,
    ),
    Case(
        group="Results that depend on values",
        what="values in the build function (`torch.linspace(0, 1, n)[i].item()`)",
        build=one(
            lambda self, x: self.a(x) * self.rate, rate=lambda: torch.linspace(0, 1, 4)[1].item()
        ),
        inputs=rows,
        flop=256,
        advice="built on the CPU, if it takes at most 4 GiB",
    ),
    # ------------------------------------------------------------------------------- refused
    Case(
        group="Refused",
        what="a loop over the samples of a batch",
        build=one(lambda self, x: torch.stack([self.a(row) for row in x])),
        inputs=rows,
        refusal="does other work with a batch of 17 than with 2, from operator aten.unbind.int on",
        advice="let one operator do the whole batch",
    ),
    Case(
        group="Refused",
        what="a device named in the code",
        build=one(lambda self, x: self.a(x) + torch.zeros(WIDTH, device="cuda")),
        inputs=rows,
        refusal="use the device of its inputs",
        advice="use `x.device`",
    ),
    Case(
        group="Refused",
        what="nested tensors",
        build=one(lambda self, x: torch.nested.nested_tensor([self.a(x)], layout=torch.strided)),
        inputs=rows,
        refusal="nested",
        advice="pad",
    ),
    Case(
        group="Refused",
        what="sparse tensors in forward",
        build=one(lambda self, x: torch.sparse.mm(self.a(x).to_sparse(), self.a.weight)),
        inputs=rows,
        refusal="on sparse tensors",
        advice="indices as dense tensors, `index_select` and `index_add`",
    ),
    Case(
        group="Refused",
        what="sparse tensors in the build function",
        build=one(lambda self, x: self.a(x), table=lambda: torch.eye(WIDTH).to_sparse()),
        inputs=rows,
        refusal="its build function makes sparse tensors",
        advice="the same",
    ),
    Case(
        group="Refused",
        what="matmuls of operands of different types",
        build=one(lambda self, x: self.a(x.double())),
        inputs=rows,
        refusal="module 'a' raised at aten.addmm.default: RuntimeError: its operands are float32 "
        "and float64, expected one type",
        advice="cast one of them, or `torch.autocast`",
    ),
    Case(
        group="Refused",
        what="TorchScript modules",
        build=lambda: torch.jit.ScriptModule(),
        inputs=rows,
        refusal="return the nn.Module it was made of",
        advice="return the module it was made of",
    ),
    Case(
        group="Refused",
        what="lazy modules",
        build=lambda: nn.Sequential(nn.LazyLinear(WIDTH)),
        inputs=rows,
        refusal="module '0' (LazyLinear) has parameters without a size",
        advice="give the layer its input size",
    ),
    Case(
        group="Refused",
        what="a build function that returns no module",
        build=lambda: {"model": linear()},
        inputs=rows,
        refusal="returned dict, expected a torch.nn.Module",
    ),
    Case(
        group="Refused",
        what="a build function that raises",
        build=lambda: 1 // 0,
        inputs=rows,
        refusal="its build function raised ZeroDivisionError",
    ),
    Case(
        group="Refused",
        what="inputs that do not fit",
        build=lambda: nn.Sequential(linear(), nn.Linear(7, 7)),
        inputs=rows,
        refusal="module '1' raised at aten.addmm.default: RuntimeError",
    ),
    Case(
        group="Refused",
        what="inputs of which none grows with the batch",
        build=linear,
        inputs=lambda _: rows(4),
        refusal="none of its inputs grows with the batch",
    ),
    Case(
        group="Refused",
        what="writing in place to what backward needs",
        build=one(_overwritten),
        inputs=rows,
        refusal="written to in place after it was kept, for the gradient of aten.exp.default",
        advice="as PyTorch does: an operator that is not in place",
    ),
    Case(
        group="Refused",
        what="modules in a plain list or dict",
        build=one(lambda self, x: self.b[0](self.a(x)), b=lambda: [linear()]),
        inputs=rows,
        refusal="the list 'b' holds modules",
        advice="use `nn.ModuleList` or `nn.ModuleDict`",
    ),
    Case(
        group="Refused",
        what="a result without a tensor",
        build=one(lambda self, x: self.a(x).shape),
        inputs=rows,
        refusal="returned Size without a tensor",
    ),
    Case(
        group="Refused",
        what="a loop without an end",
        build=one(_endless),
        inputs=rows,
        refusal="did not end in",
        advice="stopped after 300 s or a million operators",
    ),
)
