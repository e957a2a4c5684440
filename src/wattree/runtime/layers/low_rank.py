"""The control between phantom and tensor parallelism: the weights of one, the traffic of the other.

Against `PhantomLinear` it shows what exchanging ghosts instead of activations saves; against
`GatherRowsLinear`, what fewer weights alone save.
"""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from wattree.runtime.layers.ghosts import GhostLinear
from wattree.runtime.layers.low_rank_operator import LowRankOperator
from wattree.runtime.layers.sharded import LayerSettings


class LowRankLinear(GhostLinear):
    """The function of a `PhantomLinear`, from the same parameters, computed tensor-parallel.

    Input `(…, in_shard)`, output `(…, out_shard)`. Each rank gathers all activations and all
    compressors, and computes everybody's ghosts itself: (p-1) m (B + k) elements sent per rank in
    each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        ghosts: As of `GhostLinear`.
        variant: As of `GhostLinear`.
        settings: As of `ShardedLinear`.

    Attributes:
        weight, bias, compressor, decompressor: As of `PhantomLinear`, whose state it loads.

    Raises:
        StrategyError: What is asked does not fit the widths.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        ghosts: int,
        variant: str = "pair",
        **settings: Unpack[LayerSettings],
    ) -> None:
        super().__init__(in_features, out_features, ghosts=ghosts, variant=variant, **settings)
        self._operator = LowRankOperator(
            ghosts=ghosts,
            is_shared=variant == "shared",
            in_widths=self.in_widths,
            **self.operator_kwargs(ghosts=ghosts, variant=variant),
        )

    def _operands(self) -> tuple[Tensor | None, ...]:
        return self.weight, self.bias, self.compressor, self.decompressor
