"""Parameters of all ranks of a layer, split from its dense weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from wattree.runtime.convert.blocks import Blocks
from wattree.runtime.convert.cuts import LayerCut
from wattree.runtime.convert.factor import pair_factors, shared_factors
from wattree.runtime.convert.moments import Moments
from wattree.runtime.convert.plan import CutKind, Side
from wattree.runtime.convert.report import LayerReport, report_of
from wattree.runtime.group import Group
from wattree.runtime.shards import shard_offsets, shard_widths

#: Parameters of a rank's layer, by name.
State = dict[str, Tensor]


def split_dense(
    cut: LayerCut,
    weight: Tensor,
    bias: Tensor | None,
    *,
    moments: Moments | None,
    group: Group,
) -> tuple[State, LayerReport]:
    """Return the parameters of this rank, and the approximation error of all.

    Args:
        weight: `(out_features, in_features)`.
        bias: `(out_features,)`, or None.
        moments: Of its inputs, to weigh errors with; None weighs all directions alike.
        group: Ranks that share the work, all of which call this with the same layer.
    """
    # The sum of products is what is approximated: rounding errors of float32 would stay in it.
    order = output_order(cut).to(weight.device)
    exact = weight.double()[order]
    shift = None if bias is None else bias.double()[order]
    if cut.kind is not CutKind.PHANTOM:
        state = _exact_state(cut, exact, shift, group.rank)
        return _like(state, weight), report_of(cut, exact, None, None)
    second = None if moments is None else moments.shrunk(centered=cut.bias)
    blocks, seen = _factored(cut, exact, second, group), None
    if moments is not None and second is not None:
        blocks, seen = refitted(blocks, exact, second), moments.about(centered=cut.bias)
        if shift is not None:
            shift = shift + (exact - blocks.dense()) @ moments.mean
    state = blocks.state(group.rank)
    if shift is not None:
        state["bias"] = shift.split(list(cut.out_widths))[group.rank]
    return _like(state, weight), report_of(cut, exact, blocks, seen)


def output_order(cut: LayerCut) -> Tensor:
    """Return the original index of each output in rank order."""
    width = cut.out_features // cut.parts
    offsets = shard_offsets(shard_widths(width, cut.size if cut.output is Side.SHARD else 1))
    runs = [
        torch.arange(part * width + begin, part * width + end)
        for begin, end in pairwise(offsets)
        for part in range(cut.parts)
    ]
    return torch.cat(runs)


def _factored(cut: LayerCut, weight: Tensor, second: Tensor | None, group: Group) -> Blocks:
    widths = (cut.out_widths, cut.in_widths)
    rows, columns = (shard_offsets(each) for each in widths)
    own = [slice(columns[rank], columns[rank + 1]) for rank in range(cut.size)]
    roots = None
    if second is not None:
        roots = [torch.linalg.cholesky(second[each, each]) for each in own]
    operator_kwargs: dict[str, Any] = {"ghosts": cut.ghosts, "roots": roots}
    if cut.variant == "shared":
        c, d = _shared(cut, weight, widths, group, operator_kwargs)
    else:
        c, stacked = _pairs(cut, weight, widths, group, operator_kwargs)
        d = list(torch.cat(stacked, dim=1).split(list(cut.out_widths)))
    diagonal = [weight[rows[j] : rows[j + 1], own[j]] for j in range(cut.size)]
    return Blocks(
        variant=cut.variant,
        diagonal=tuple(diagonal),
        compressors=tuple(c),
        decompressors=tuple(d),
    )


def _pairs(
    cut: LayerCut,
    weight: Tensor,
    widths: Any,
    group: Group,
    operator_kwargs: Mapping[str, Any],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return factors of every source; ranks compute their own and exchange them."""
    c, d = pair_factors(weight, group.rank, widths, **operator_kwargs)
    if group.size == 1:
        return [c], [d]
    sizes = [cut.out_features + width for width in cut.in_widths]
    whole = group.all_gather(torch.cat([d, c.t()]), sizes, cut.name).wait().split(sizes)
    return [each[cut.out_features :].t() for each in whole], [
        each[: cut.out_features] for each in whole
    ]


def _shared(
    cut: LayerCut,
    weight: Tensor,
    widths: Any,
    group: Group,
    operator_kwargs: Mapping[str, Any],
) -> tuple[list[Tensor], list[Tensor]]:
    """Return factors that one rank has computed, so that all have the same."""
    if group.size > 1:
        packed = weight.new_zeros(cut.out_features + cut.in_features, cut.ghosts)
        if group.rank == 0:
            c, d = shared_factors(weight, widths, **operator_kwargs)
            packed = torch.cat([*d, *[each.t() for each in c]])
        packed = group.all_reduce(packed.contiguous(), cut.name).wait()
        ups, downs = packed.split([cut.out_features, cut.in_features])
        parts = downs.split(list(cut.in_widths))
        return [each.t() for each in parts], list(ups.split(list(cut.out_widths)))
    return shared_factors(weight, widths, **operator_kwargs)


def _exact_state(cut: LayerCut, weight: Tensor, bias: Tensor | None, rank: int) -> State:
    if cut.kind is CutKind.ROW:
        found = {"weight": weight.split(list(cut.in_widths), dim=1)[rank]}
    else:
        widths = list(shard_widths(cut.out_features, cut.size))
        found = {"weight": weight.split(widths)[rank]}
        bias = None if bias is None else bias.split(widths)[rank]
    return found if bias is None else found | {"bias": bias}


def _like(state: State, weight: Tensor) -> State:
    return {name: each.to(weight.dtype).contiguous() for name, each in state.items()}


def refitted(blocks: Blocks, weight: Tensor, second: Tensor) -> Blocks:
    """Return blocks with the least expected output error for these compressors.

    A rank's outputs are a linear function of what it has, `r = A x`: its own inputs and the others'
    ghosts (their sum, if shared). Of inputs with second moment S the best one is
    `[L D] = W S Aᵀ (A S Aᵀ)⁺`: own inputs then stand in for what they tell of the others.

    Args:
        weight: Rows that they stand for, `(out, in)`.
        second: S, `(in, in)`.
    """
    widths = [int(each.shape[1]) for each in blocks.diagonal]
    columns = shard_offsets(tuple(widths))
    rows = [int(each.shape[0]) for each in blocks.diagonal]
    diagonal, decompressors = [], []
    for rank, part in enumerate(weight.split(rows)):
        reads = _reads(blocks, rank, columns)
        products = second @ reads.t()
        square = reads @ products
        found = torch.linalg.pinv(square, hermitian=True) @ (part @ products).t()
        own, ghosts = found.t().split([widths[rank], len(reads) - widths[rank]], dim=1)
        diagonal.append(own)
        decompressors.append(_placed(blocks, ghosts, rank))
    return replace(blocks, diagonal=tuple(diagonal), decompressors=tuple(decompressors))


def _reads(blocks: Blocks, rank: int, columns: tuple[int, ...]) -> Tensor:
    """Return A: own inputs, then ghosts of the others in order of rank, or their sum."""
    whole = columns[-1]
    like = blocks.diagonal[0]
    own = torch.eye(whole, dtype=like.dtype, device=like.device)[columns[rank] : columns[rank + 1]]
    ghosts = []
    for source, compressor in enumerate(blocks.compressors):
        block = like.new_zeros(blocks.ghosts, whole)
        block[:, columns[source] : columns[source + 1]] = compressor
        if source != rank:
            ghosts.append(block)
    if blocks.variant == "shared":
        ghosts = [torch.stack(ghosts).sum(0)] if ghosts else []
    return torch.cat([own, *ghosts])


def _placed(blocks: Blocks, ghosts: Tensor, rank: int) -> Tensor:
    """Return a decompressor in the layout of `Blocks`."""
    if blocks.variant == "shared":
        return ghosts
    k = blocks.ghosts
    before, after = ghosts[:, : rank * k], ghosts[:, rank * k :]
    return torch.cat([before, ghosts.new_zeros(len(ghosts), k), after], dim=1)
