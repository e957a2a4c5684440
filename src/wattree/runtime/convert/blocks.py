"""Blocks of a phantom layer on all ranks: dense equivalent, merging, and one rank's part.

`W_jj = L_j`, and `W_ji = D_ji C_i` (pair) or `D_j C_i` (shared).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wattree.errors import StrategyError
from wattree.runtime.shards import peers_of, shard_widths


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

    @classmethod
    def of_states(cls, states: Sequence[Mapping[str, Tensor]], variant: str) -> Blocks:
        """Return the blocks from the results of `state` of every rank."""
        size = len(states)
        diagonal = tuple(state["weight"] for state in states)
        if "compressor" not in states[0]:
            return cls(
                variant=variant,
                diagonal=diagonal,
                compressors=tuple(each.new_zeros(0, each.shape[1]) for each in diagonal),
                decompressors=tuple(each.new_zeros(each.shape[0], 0) for each in diagonal),
            )
        found = []
        for rank, state in enumerate(states):
            whole = state["decompressor"]
            if variant == "pair":
                k = state["compressor"].shape[0]
                blocks = [whole.new_zeros(whole.shape[0], k)] * size
                for peer, block in zip(peers_of(rank, size), whole.split(k, dim=1), strict=True):
                    blocks[peer] = block
                whole = torch.cat(blocks, dim=1)
            found.append(whole)
        compressors = tuple(state["compressor"] for state in states)
        return cls(
            variant=variant, diagonal=diagonal, compressors=compressors, decompressors=tuple(found)
        )

    def merged(self, size: int) -> Blocks:
        """Return the same function on fewer ranks, each in the place of `self.size / size`.

        Diagonal blocks of merged ranks become one dense block. A pair layer then has the ghosts of
        all that were merged; a shared one keeps its number, because what was merged gets the same
        sum of the same others.

        Raises:
            StrategyError: Ranks do not divide, or shards of merged ranks are not those that so
                many ranks have.
        """
        if size < 1 or self.size % size:
            raise StrategyError(
                {"size": f"{self.size} ranks cannot be merged to {size}; give a divisor"}
            )
        each = self.size // size
        groups = [range(first, first + each) for first in range(0, self.size, each)]
        for side, widths in (("in", self._widths(1)), ("out", self._widths(0))):
            sums = tuple(sum(widths[rank] for rank in group) for group in groups)
            if sums != shard_widths(sum(widths), size):
                raise StrategyError(
                    {
                        f"{side}_features": f"shards {widths} merge to {sums}, but {size} ranks "
                        f"have {shard_widths(sum(widths), size)}; merge to another number of "
                        "ranks, or to 1"
                    }
                )
        diagonal = tuple(
            torch.cat([torch.cat([self._block(j, i) for i in group], dim=1) for j in group])
            for group in groups
        )
        if self.variant == "shared":
            return Blocks(
                variant=self.variant,
                diagonal=diagonal,
                compressors=tuple(
                    torch.cat([self.compressors[i] for i in group], dim=1) for group in groups
                ),
                decompressors=tuple(
                    torch.cat([self.decompressors[j] for j in group]) for group in groups
                ),
            )
        return Blocks(
            variant=self.variant,
            diagonal=diagonal,
            compressors=tuple(
                torch.block_diag(*[self.compressors[i] for i in group]) for group in groups
            ),
            decompressors=tuple(self._merged_decompressor(group) for group in groups),
        )

    def _merged_decompressor(self, group: range) -> Tensor:
        """Return the rows of a merged rank's decompressor, zero for its own ghosts."""
        rows = torch.cat([self.decompressors[j] for j in group])
        rows[:, group.start * self.ghosts : group.stop * self.ghosts] = 0
        return rows

    def _block(self, target: int, source: int) -> Tensor:
        if target == source:
            return self.diagonal[target]
        decompressor = self.decompressors[target]
        if self.variant == "pair":
            begin = source * self.ghosts
            decompressor = decompressor[:, begin : begin + self.ghosts]
        return decompressor @ self.compressors[source]

    def _widths(self, dim: int) -> tuple[int, ...]:
        return tuple(int(block.shape[dim]) for block in self.diagonal)
