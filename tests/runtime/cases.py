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
)
from wattree.runtime.layers import megatron, sequence_operators
from wattree.runtime.shards import shard_offsets, shard_widths

Dense = Callable[[list[dict[str, Tensor]], torch.nn.Module], tuple[Tensor, Tensor]]


def known_parameters(layer: Any, group: Group) -> list[dict[str, Tensor]]:
    """Give this rank its parameters, and return those of every rank, as leaves.

    All are drawn from one stream, so that each rank knows those of the others without asking.
    """
    stream = torch.Generator().manual_seed(5)
    every = []
    for rank in range(group.size):
        shapes = {name: list(each.shape) for name, each in layer.named_parameters()}
        for name, dim, widths in (
            ("weight", 0, layer.out_widths),
            ("weight", 1, layer.in_widths),
            ("bias", 0, layer.out_widths),
            ("compressor", 1, layer.in_widths),
            ("decompressor", 0, layer.out_widths),
        ):
            if name in shapes and len(widths) > 1:
                shapes[name][dim] = widths[rank]
            elif name == "weight" and isinstance(layer, ColumnParallelLinear) and dim == 1:
                shapes[name][dim] = layer.in_features
        if isinstance(layer, GatherRowsLinear):
            shapes["weight"][1] = layer.in_features
        every.append(
            {
                name: torch.randn(shape, dtype=torch.float64, generator=stream).requires_grad_()
                for name, shape in shapes.items()
            }
        )
    if isinstance(layer, RowParallelLinear):
        every = [one | {"bias": every[0]["bias"]} for one in every]
    with torch.no_grad():
        for name, each in layer.named_parameters():
            each.copy_(every[group.rank][name])
    return every


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


def errors_of(layer: Any, dense: Dense, group: Group) -> dict[str, float]:
    """Return forward's and every gradient's relative error against the dense layer."""
    every = known_parameters(layer, group)
    rank, size = group.rank, group.size
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
    for name, parameter in layer.named_parameters():
        found[name] = relative(parameter.grad, every[rank][name].grad)
    return found


def layers_of(n_in: int, n_out: int, group: Group) -> dict[str, tuple[Any, Dense]]:
    """Return every contestant, in every setting that takes another path, by name."""
    made: dict[str, Any] = {"group": group, "dtype": torch.float64}
    m = n_in // group.size
    found: dict[str, tuple[Any, Dense]] = {}
    for overlap in (True, False):
        made["overlap"] = overlap
        for k, variant in product(sorted({0, 1, max(1, m // 4), m}), ("pair", "shared")):
            as_dict = {"ghosts": k, "variant": variant}
            for regather in (False, True):
                layer = PhantomLinear(n_in, n_out, **as_dict, regather=regather, **made)
                case = f"phantom {k} {variant}, overlap {overlap}, regather {regather}"
                found[case] = layer, phantom_dense
            case = f"low rank {k} {variant}, overlap {overlap}"
            found[case] = LowRankLinear(n_in, n_out, **as_dict, **made), phantom_dense
        found[f"rows, overlap {overlap}"] = GatherRowsLinear(n_in, n_out, **made), rows_dense
        for sequence in (True, False):
            as_dict = {"sequence_parallel": sequence}
            case = f"sequence {sequence}, overlap {overlap}"
            column = ColumnParallelLinear(n_in, n_out, **as_dict, **made)
            row = RowParallelLinear(n_in, n_out, **as_dict, **made)
            found |= {f"column, {case}": (column, rows_dense), f"row, {case}": (row, columns_dense)}
    return found


def exactness(sizes: list[int]) -> dict[str, dict[str, dict[str, float]]]:
    """Return errors by group size and case; what overlaps is cut however small it is."""
    sequence_operators._ROWS_WORTH = megatron._LEAST_BYTES = 1
    torch.manual_seed(3)
    found = {}
    for size in sizes:
        ranks = dist.new_group(range(size))
        if dist.get_rank() >= size:
            continue
        group = Group(ranks)
        # Widths that divide, and such that do not; each second setting of both.
        even = list(layers_of(8 * size, 8 * size, group).items())[::2]
        uneven = list(layers_of(9 * size - 1, 8 * size + 1, group).items())[1::2]
        # The collectives of other backends, as far as gloo has them too: for parts of one size.
        native = Group(ranks)
        if size in {3, 4}:
            native.native = frozenset({"gloo"})
        others = [
            (f"native {name}", case)
            for name, case in layers_of(8 * size, 8 * size, native).items()
            if native.native != group.native and not name.startswith(("row, seq", "column, seq"))
        ]
        found[str(size)] = {
            f"{layer.in_features} to {layer.out_features}, {name}": errors_of(layer, dense, group)
            for name, (layer, dense) in even + uneven + others
        }
    return found
