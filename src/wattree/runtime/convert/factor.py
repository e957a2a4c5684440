"""Optimal factors of the off-diagonal blocks of a dense weight.

`pair`: all receivers of rank i share its `C_i`, so that the sum over j of `|W_ji - D_ji C_i|²` is
least for the truncated singular value decomposition of the blocks `W_ji`, j ≠ i, stacked
(C. Eckart, G. Young, Psychometrika 1, 1936): no factors of that rank are better.

`shared`: `W_ji ≈ D_j C_i` for all i ≠ j is a factorization of rank k of a matrix whose diagonal
blocks are free, for which no closed form is known beyond two ranks. Alternating least squares from
the decomposition of the matrix with empty diagonal blocks never gets worse, and may end above the
least error; that of `pair` is never above it. With two ranks the blocks have no factor in common,
and each is decomposed.

With second moments of inputs, blocks are weighted by the Cholesky factor of each source's own,
which makes the expected error of what a source contributes least.

Rows of `C_i` are orthonormal: they have the norm that initial ones have on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wattree.runtime.shards import shard_offsets

#: Rounds of alternating least squares, and the share of the error below which a gain ends them.
_ROUNDS, _GAIN = 200, 1e-5
#: Share of a squared norm that is rounding.
_NOTHING = 1e-24
#: Share of a trace that is added to every entry of a diagonal.
_RIDGE = 1e-14


def pair_factors(
    weight: Tensor,
    source: int,
    widths: tuple[Sequence[int], Sequence[int]],
    ghosts: int,
    roots: Sequence[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return compressor and decompressors of one sending rank.

    Args:
        weight: `(out, in)`.
        widths: Rows and columns of every rank.
        ghosts: k.
        roots: Cholesky factors R of the second moments `R Rᵀ` of every rank's inputs.

    Returns:
        `C_i`, `(k, in_i)`, and `D_ji` stacked, `(out, k)`, whose own rows are zero.
    """
    rows, columns = (shard_offsets(tuple(each)) for each in widths)
    block = weight[:, columns[source] : columns[source + 1]].clone()
    block[rows[source] : rows[source + 1]] = 0
    root = None if roots is None else roots[source]
    return _truncated(block, ghosts, root)


def shared_factors(
    weight: Tensor,
    widths: tuple[Sequence[int], Sequence[int]],
    ghosts: int,
    roots: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return compressors `C_i`, `(k, in_i)`, and decompressors `D_j`, `(out_j, k)`, by rank.

    Args: as of `pair_factors`.
    """
    rows, columns = (shard_offsets(tuple(each)) for each in widths)
    size = len(widths[0])
    if size == 2:
        pairs = [pair_factors(weight, rank, widths, ghosts, roots) for rank in range(2)]
        others = [pairs[1 - rank][1][rows[rank] : rows[rank + 1]] for rank in range(2)]
        return [pair[0] for pair in pairs], others
    masked = _masked(weight, rows, columns)
    if roots is not None:
        masked = masked @ torch.block_diag(*roots)
    down, up = _alternate(masked, rows, columns, ghosts)
    compressors = list(down.split(list(widths[1]), dim=1))
    if roots is not None:
        compressors = [
            torch.linalg.solve_triangular(root, each, upper=False, left=False)
            for root, each in zip(roots, compressors, strict=True)
        ]
    # One change of basis for all, since they share decompressors.
    q, r = torch.linalg.qr(torch.cat(compressors, dim=1).t())
    scale = size**0.5  # rows of each rank's part then have norm 1 on average
    whole = list((q.t() * scale).split(list(widths[1]), dim=1))
    return whole, list((up @ r.t() / scale).split(list(widths[0])))


def _truncated(block: Tensor, k: int, root: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the best factors of rank k, the first with orthonormal rows."""
    if root is None:
        # Right singular vectors are eigenvectors of BᵀB, whose side is a shard: some times quicker.
        # Squared values leave those below 1e-8 of the largest inexact, which then matter nothing.
        _, vectors = torch.linalg.eigh(block.t() @ block)
        right = vectors.flip(1)[:, :k]
        return right.t(), block @ right
    c, d = _truncated(block @ root, k, None)
    # D (C R⁻¹), in an orthonormal basis of what C R⁻¹ reads.
    c = torch.linalg.solve_triangular(root, c, upper=False, left=False)
    q, r = torch.linalg.qr(c.t())
    return q.t(), d @ r.t()


def _masked(weight: Tensor, rows: Sequence[int], columns: Sequence[int]) -> Tensor:
    found = weight.clone()
    for rank in range(len(rows) - 1):
        found[rows[rank] : rows[rank + 1], columns[rank] : columns[rank + 1]] = 0
    return found


def _alternate(
    masked: Tensor, rows: Sequence[int], columns: Sequence[int], k: int
) -> tuple[Tensor, Tensor]:
    """Return C `(k, in)` and D `(out, k)` by alternating least squares."""
    c, d = _truncated(masked, k, None)
    if k == 0:
        return c, d
    size = len(rows) - 1
    total = masked.square().sum()
    last = torch.inf
    for _ in range(_ROUNDS):
        c_parts = [c[:, columns[i] : columns[i + 1]] for i in range(size)]
        squares = [part @ part.t() for part in c_parts]
        whole, products = sum(squares), masked @ c.t()
        d = torch.cat(
            [
                _solved(whole - squares[j], products[rows[j] : rows[j + 1]].t()).t()
                for j in range(size)
            ]
        )
        d_parts = [d[rows[j] : rows[j + 1]] for j in range(size)]
        squares = [part.t() @ part for part in d_parts]
        whole, products = sum(squares), d.t() @ masked
        c = torch.cat(
            [
                _solved(whole - squares[i], products[:, columns[i] : columns[i + 1]])
                for i in range(size)
            ],
            dim=1,
        )
        error = (masked - _masked(d @ c, rows, columns)).square().sum()
        if last - error <= _GAIN * error or error <= _NOTHING * total:
            break
        last = error
    return c, d


def _solved(square: Tensor, right: Tensor) -> Tensor:
    """Return the least-squares solution; a ridge of the size of rounding bears lower ranks."""
    level = square.diagonal().sum().clamp(min=torch.finfo(square.dtype).tiny) * _RIDGE
    return torch.linalg.solve(square + level * torch.eye(len(square)).to(square), right)
