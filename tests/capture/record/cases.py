"""Small modules, each with one thing in it that makes capturing hard, and what becomes of each.

`test_cases.py` checks every line; `docs/capture_tables.py` writes them into docs/capture.md.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.capture.record.case_modules import (
    WIDTH,
    Calls,
    Case,
    Constants,
    Features,
    Scaled,
    attention,
    autocast,
    convolution,
    ctc,
    frozen,
    images,
    in_place,
    linear,
    one,
    packed,
    penalised,
    recurrent,
    region,
    rows,
    scattered,
    shared,
    tied,
    tokens,
)
from tests.capture.record.value_cases import VALUE_CASES

__all__ = ["CASES"]


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
            build=convolution(kind, stride=2, padding=2, dilation=2),
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
            build=convolution(kind, stride=2),
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
        what="`F.scaled_dot_product_attention` in four dims, with any mask and dropout",
        build=one(attention),
        inputs=tokens,
        sequence=16,
        flop=2 * 16 * 8 * 8 * 2 + 2 * (2 * 16 * 16 * 16),
        operators=("wattree.attention",),
        advice="one operator; otherwise written out, as PyTorch has no fused kernel",
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
            build=recurrent(kind, **keys),
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
        build=lambda: Calls(packed, rnn=nn.LSTM(WIDTH, 6)),
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
        build=one(scattered),
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
    Case(
        group="Other operators",
        what="`F.ctc_loss`",
        build=one(ctc),
        inputs=tokens,
        sequence=4,
        flop=2 * 4 * 128,
        operators=("wattree.ctc_loss",),
        advice="its bytes alone are counted, with a warning",
    ),
    # ---------------------------------------------------------------------------- structure
    Case(
        group="Structure",
        what="in-place operators, views, writes through views",
        build=one(in_place),
        inputs=rows,
        flop=256,
        operators=("aten.relu_.default", "aten.masked_fill_.Scalar"),
    ),
    Case(
        group="Structure",
        what="`torch.utils.checkpoint`, reentrant",
        build=region(reentrant=True),
        inputs=rows,
        flop=768,
        backward_flop=(512, 768),
    ),
    Case(
        group="Structure",
        what="`torch.utils.checkpoint`, not reentrant",
        build=region(reentrant=False),
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
    Case(group="Structure", what="tied parameters", build=tied, inputs=rows, flop=512),
    Case(group="Structure", what="modules used twice", build=shared, inputs=rows, flop=512),
    Case(
        group="Structure",
        what="frozen parameters",
        build=frozen,
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
        build=one(autocast),
        inputs=rows,
        flop=256,
        operators=("aten._to_copy.default",),
        advice="the casts are recorded; precision is the job's, with a warning",
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
        advice="the model inside is taken; replicas are the strategy's, compiling is the job's, "
        "with a warning",
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
        build=one(penalised),
        inputs=rows,
        flop=256 + 256,
        operators=("aten.tanh_backward.default",),
    ),
    *VALUE_CASES,
)
