"""Cases of values and of refusals, for `cases.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.capture.record.case_modules import (
    WIDTH,
    Calls,
    Case,
    linear,
    one,
    rows,
)

__all__ = ["VALUE_CASES"]


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


def _endless(self: Any, x: torch.Tensor) -> torch.Tensor:
    while True:
        x = self.a(x)


VALUE_CASES = (
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
