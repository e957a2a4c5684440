"""The control between phantom and tensor parallelism: the weights of one, the traffic of the other.

Against `PhantomLinear` it shows what exchanging ghosts instead of activations saves; against
`GatherRowsLinear`, what fewer weights alone save.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from wattree.runtime.layers.ghosts import GhostLinear
from wattree.runtime.layers.low_rank_operator import LowRankOperator
from wattree.runtime.layers.operator import run
from wattree.runtime.layers.sharded import rows_of

__all__ = ["LowRankLinear"]


class LowRankLinear(GhostLinear):
    """The function of a `PhantomLinear`, from the same parameters, computed tensor-parallel.

    Input `(…, in_shard)`, output `(…, out_shard)`. Each rank gathers all activations and all
    compressors, and computes everybody's ghosts itself: (p-1) m (B + k) elements sent per rank in
    each direction.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        ghosts: k; 0 up to the smallest input shard.
        variant: `pair` or `shared`.
        bias: Whether to add one.
        overlap: Whether communication goes on during local products.
        device: Of the parameters.
        dtype: Of the parameters.
        name: What messages call the layer.

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
        group: Any = None,
        ghosts: int,
        variant: str = "pair",
        bias: bool = True,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__(
            in_features,
            out_features,
            group=group,
            overlap=overlap,
            name=name,
            ghosts=ghosts,
            variant=variant,
            bias=bias,
            ghost_bias=False,
            device=device,
            dtype=dtype,
        )
        self._operator = LowRankOperator(
            ghosts=ghosts,
            is_shared=variant == "shared",
            in_widths=self.in_widths,
            **self.told(self.in_shard, bias=bias, ghosts=ghosts, variant=variant),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)` of `(…, in_shard)`."""
        if not self.has_ghosts:
            return functional.linear(x, self.weight, self.bias)
        parameters = (self.weight, self.bias, self.compressor, self.decompressor)
        z = run(self._operator, rows_of(x), *parameters)
        return z.view(*x.shape[:-1], self.out_shard)
