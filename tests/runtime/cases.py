"""What ranks do in the tests of layers; `tests/distributed/ranks.py` starts them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wattree.runtime import (
    ColumnParallelLinear,
    GatherRowsLinear,
    Group,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
    peers_of,
    shard_offsets,
    shard_widths,
)
from wattree.runtime.layers import megatron_operators, sequence_operators

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


def columns_dense(every: list[dict[str, Tensor]], _: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Return the dense weight and bias: columns side by side, the bias of the first rank."""
    return torch.cat([e["weight"] for e in every], 1), every[0]["bias"]


def part_of(widths: tuple[int, ...], rank: int) -> slice:
    """Return this rank's part of a width; all of one that is not cut."""
    return slice(*shard_offsets(widths)[rank : rank + 2]) if len(widths) > 1 else slice(None)


def errors_of(layer: Any, dense: Dense) -> dict[str, float]:
    """Return forward's and every gradient's relative error against the dense layer."""
    rank, size = layer.group.rank, layer.group.size
    stream = torch.Generator().manual_seed(7)
    length = 2 * size + 1  # uneven over ranks
    x = torch.randn(length, 3, layer.in_features, dtype=torch.float64, generator=stream)
    target = torch.randn(length, 3, layer.out_features, dtype=torch.float64, generator=stream)
    x_part = [slice(None), slice(None), part_of(layer.in_widths, rank)]
    y_part = [slice(None), slice(None), part_of(layer.out_widths, rank)]
    if getattr(layer, "sequence_parallel", False) and size > 1:
        part = y_part if isinstance(layer, RowParallelLinear) else x_part
        part[0] = part_of(shard_widths(length, size), rank)
    x_own = x[tuple(x_part)].clone().requires_grad_()
    y = layer(x_own)
    (y * target[tuple(y_part)]).sum().backward()

    every = gathered_parameters(layer)
    x.requires_grad_()
    weight, bias = dense(every, layer)
    wanted = x @ weight.t() + bias
    (wanted * target).sum().backward()
    found = {
        "forward": relative(y, wanted[tuple(y_part)]),
        "input": relative(x_own.grad, x.grad[tuple(x_part)]),
        "dense_weight": relative(layer.dense_weight(), weight),
        "dense_bias": relative(layer.dense_bias(), bias),
    }
    # Of a bias that is on every rank the gradient of the first copy is that of all.
    owner = 0 if isinstance(layer, RowParallelLinear) else rank
    for name, parameter in layer.named_parameters():
        of = owner if name == "bias" else rank
        found[name] = relative(parameter.grad, every[of][name].grad)
    return found


def layers_of(n_in: int, n_out: int, group: Group) -> dict[str, tuple[Any, Dense]]:
    """Return every contestant, in every setting that takes another path, by name."""
    made: dict[str, Any] = {"group": group, "dtype": torch.float64}
    m = n_in // group.size
    found: dict[str, tuple[Any, Dense]] = {}
    for k, variant in product(sorted({0, 1, max(1, m // 4), m}), ("pair", "shared")):
        for overlap, regather in ((True, False), (False, False), (True, True)):
            told = {"ghosts": k, "variant": variant, "overlap": overlap}
            layer = PhantomLinear(n_in, n_out, **told, regather=regather, **made)
            found[f"phantom {k} {variant} {overlap} {regather}"] = layer, phantom_dense
        for overlap in (True, False):
            layer = LowRankLinear(n_in, n_out, ghosts=k, variant=variant, overlap=overlap, **made)
            found[f"low rank {k} {variant} {overlap}"] = layer, phantom_dense
    for overlap in (True, False):
        layer = GatherRowsLinear(n_in, n_out, overlap=overlap, **made)
        found[f"rows {overlap}"] = layer, rows_dense
        for sequence in (True, False):
            told = {"sequence_parallel": sequence, "overlap": overlap}
            column = ColumnParallelLinear(n_in, n_out, **told, **made)
            row = RowParallelLinear(n_in, n_out, **told, **made)
            torch.nn.init.normal_(row.bias, generator=torch.Generator().manual_seed(5))
            found[f"column {sequence} {overlap}"] = column, rows_dense
            found[f"row {sequence} {overlap}"] = row, columns_dense
    return found


def exactness(widths: list[list[int]]) -> dict[str, dict[str, float]]:
    """Return errors by case; what overlaps is cut however small it is."""
    sequence_operators._ROWS_WORTH = megatron_operators._LEAST_BYTES = 1
    group = Group()
    torch.manual_seed(3)
    return {
        f"{n_in} to {n_out}, {name}": errors_of(*case)
        for n_in, n_out in widths
        for name, case in layers_of(n_in, n_out, group).items()
    }
