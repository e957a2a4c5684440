"""Blocks of a phantom layer on all ranks: dense equivalent, and one rank's part.

`W_jj = L_j`, and `W_ji = D_ji C_i` (pair) or `D_j C_i` (shared).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wattree.runtime.shards import peers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Factors of all ranks, by rank.

    Attributes:
        variant: `pair` or `shared`.
        diagonal: `L_j`, `(out_j, in_j)`.
        compressors: `C_i`, `(ghosts, in_i)`.
        decompressors: `D_j`: `(out_j, size ghosts)`, a block for each rank in their order, the own
            one zero; `(out_j, ghosts)` if shared.
    """

    variant: str
    diagonal: tuple[Tensor, ...]
    compressors: tuple[Tensor, ...]
    decompressors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.diagonal)

    @property
    def ghosts(self) -> int:
        """Number of ghosts of each rank."""
        return int(self.compressors[0].shape[0])

    def dense(self) -> Tensor:
        """Return the equivalent weight `(out_features, in_features)`."""
        return torch.cat(
            [
                torch.cat([self._block(target, source) for source in range(self.size)], dim=1)
                for target in range(self.size)
            ]
        )

    def state(self, rank: int) -> dict[str, Tensor]:
        """Return the parameters of a rank's `PhantomLinear`, but for its bias."""
        found = {"weight": self.diagonal[rank]}
        if self.ghosts and self.size > 1:
            found["compressor"] = self.compressors[rank]
            found["decompressor"] = self.decompressors[rank]
            if self.variant == "pair":
                blocks = self.decompressors[rank].split(self.ghosts, dim=1)
                peers = peers_of(rank, self.size)
                found["decompressor"] = torch.cat([blocks[peer] for peer in peers], dim=1)
        return found

    def _block(self, target: int, source: int) -> Tensor:
        if target == source:
            return self.diagonal[target]
        decompressor = self.decompressors[target]
        if self.variant == "pair":
            begin = source * self.ghosts
            decompressor = decompressor[:, begin : begin + self.ghosts]
        return decompressor @ self.compressors[source]
