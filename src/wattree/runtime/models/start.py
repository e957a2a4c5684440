"""Weights to start from: the same function however its layers are spread over ranks.

Numbers are drawn in tiles, each from a seed of its own, so that a rank draws what it holds (and the
rows of its tiles down to that) and two ranks that hold the same entry of a matrix draw the same
number.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

#: Rows and columns of a tile.
_TILE = 512


def normal_block(
    *, seed: int, name: str, rows: tuple[int, int], columns: tuple[int, int], std: float
) -> Tensor:
    """Return a block of a matrix of normal numbers, `(rows, columns)`, float32 on the CPU.

    Args:
        seed: Of the run.
        name: Of the matrix.
        rows, columns: First, and the one after the last, of the whole matrix.
        std: Standard deviation.
    """
    block = torch.empty(rows[1] - rows[0], columns[1] - columns[0])
    for i in range(rows[0] // _TILE, -(-rows[1] // _TILE)):
        for j in range(columns[0] // _TILE, -(-columns[1] // _TILE)):
            top, left = i * _TILE, j * _TILE
            r = slice(max(rows[0], top), min(rows[1], top + _TILE))
            generator = _generator(f"{seed}/{name}/{i}/{j}")
            tile = torch.randn(r.stop - top, _TILE, generator=generator)
            c = slice(max(columns[0], left), min(columns[1], left + _TILE))
            block[
                r.start - rows[0] : r.stop - rows[0], c.start - columns[0] : c.stop - columns[0]
            ] = tile[r.start - top : r.stop - top, c.start - left : c.stop - left]
    return block.mul_(std)


def _generator(text: str) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(number)
