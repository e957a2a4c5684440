"""Refits own blocks and decompressors to the outputs, for given compressors."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wattree.runtime.convert.blocks import Blocks
from wattree.runtime.shards import shard_offsets


def refitted(blocks: Blocks, weight: Tensor, second: Tensor) -> Blocks:
    """Return blocks with the least expected output error for these compressors.

    A rank's outputs are a linear function of what it has, `r = A x`: its own inputs and the others'
    ghosts (their sum, if shared). Of inputs with second moment S the best one is
    `[L D] = W S Aᵀ (A S Aᵀ)⁺`: own inputs then stand in for what they tell of the others.

    Args:
        blocks: Whose compressors stay.
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
