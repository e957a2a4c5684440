"""What ranks do in the tests of layers; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.runtime import GatherRowsLinear, Group, PhantomLinear, peers_of, shard_offsets

Dense = Callable[[list[dict[str, Tensor]], torch.nn.Module], tuple[Tensor, Tensor]]


def gathered_parameters(layer: torch.nn.Module) -> list[dict[str, Tensor]]:
    """Return the parameters of every rank, as leaves that take gradients."""
    own = {name: each.detach() for name, each in layer.named_parameters()}
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return [{name: each.requires_grad_() for name, each in one.items()} for one in found]


def phantom_dense(every: list[dict[str, Tensor]], layer: PhantomLinear) -> tuple[Tensor, Tensor]:
    """Return the dense weight and bias as the equations have them: `W_ji = D_ji C_i`."""
    size, k = layer.group.size, layer.ghosts
    rows = []
    for j in range(size):
        row = []
        for i in range(size):
            if i == j:
                row.append(every[j]["weight"])
            elif k == 0:
                row.append(every[j]["weight"].new_zeros(layer.out_widths[j], layer.in_widths[i]))
            else:
                place = 0 if layer.variant == "shared" else peers_of(j, size).index(i)
                block = every[j]["decompressor"][:, place * k : (place + 1) * k]
                row.append(block @ every[i]["compressor"])
        rows.append(torch.cat(row, 1))
    return torch.cat(rows), torch.cat([each["bias"] for each in every])


def rows_dense(every: list[dict[str, Tensor]], _: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Return the dense weight and bias: rows, one rank after the other."""
    return torch.cat([e["weight"] for e in every]), torch.cat([e["bias"] for e in every])


def relative(found: Tensor, wanted: Tensor) -> float:
    """Return the largest error, relative to the largest value."""
    if wanted.numel() == 0:
        return 0.0
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-300))


def errors_of(layer: Any, dense: Dense, batch: int) -> dict[str, float]:
    """Return forward's and every gradient's relative error against the dense layer."""
    rank = layer.group.rank
    stream = torch.Generator().manual_seed(7)
    x = torch.randn(batch, layer.in_features, dtype=torch.float64, generator=stream)
    target = torch.randn(batch, layer.out_features, dtype=torch.float64, generator=stream)
    ins, outs = shard_offsets(layer.in_widths), shard_offsets(layer.out_widths)
    mine, out = slice(ins[rank], ins[rank + 1]), slice(outs[rank], outs[rank + 1])
    x_own = x[:, mine].clone().requires_grad_()
    y = layer(x_own)
    (y * target[:, out]).sum().backward()

    every = gathered_parameters(layer)
    x.requires_grad_()
    weight, bias = dense(every, layer)
    wanted = x @ weight.t() + bias
    (wanted * target).sum().backward()
    found = {
        "forward": relative(y, wanted[:, out]),
        "input": relative(x_own.grad, x.grad[:, mine]),
        "dense_weight": relative(layer.dense_weight(), weight),
        "dense_bias": relative(layer.dense_bias(), bias),
    }
    for name, parameter in layer.named_parameters():
        found[name] = relative(parameter.grad, every[rank][name].grad)
    return found


def exactness(widths: list[list[int]], batch: int = 5) -> dict[str, dict[str, float]]:
    """Return errors by case."""
    group = Group()
    torch.manual_seed(3)
    made = {"group": group, "dtype": torch.float64}
    found = {}
    for n_in, n_out in widths:
        m = n_in // group.size
        for k in sorted({0, 1, max(1, m // 4), m}):
            for variant in ("pair", "shared"):
                for overlap, regather in ((True, False), (False, False), (True, True)):
                    layer = PhantomLinear(
                        n_in,
                        n_out,
                        ghosts=k,
                        variant=variant,
                        overlap=overlap,
                        regather=regather,
                        **made,
                    )
                    case = f"phantom {n_in} {n_out} k{k} {variant} {overlap} {regather}"
                    found[case] = errors_of(layer, phantom_dense, batch)
        for overlap in (True, False):
            layer = GatherRowsLinear(n_in, n_out, overlap=overlap, **made)
            found[f"rows {n_in} {n_out} {overlap}"] = errors_of(layer, rows_dense, batch)
    return found
