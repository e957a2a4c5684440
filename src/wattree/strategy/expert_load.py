"""Load imbalance of experts: tokens that the experts of each rank receive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.errors import StrategyError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Tokens of expert-parallel ranks, equal in every layer, micro-batch and replica.

    Either one rank receives `imbalance` times the mean and the others share the rest alike, or
    every expert's share is drawn.

    Attributes:
        imbalance: Tokens of the busiest rank over the mean of all.
        spread: Standard deviation of the logarithm of an expert's share (log-normal); 0: not drawn.
        capacity: Most tokens that an expert takes, over the mean; the rest is dropped (Fedus,
            Zoph, Shazeer, "Switch Transformers", 2021, §2.2). None: all are taken.
    """

    imbalance: float = 1.0
    spread: float = 0.0
    seed: int = 0
    capacity: float | None = None

    def __post_init__(self) -> None:
        misfits = {}
        if not 1.0 <= self.imbalance < np.inf:
            misfits["strategy.expert_imbalance"] = (
                f"found {self.imbalance:g}, expected 1 (balanced) or more: tokens of the busiest "
                "rank over the mean"
            )
        if not 0.0 <= self.spread < np.inf:
            misfits["strategy.expert_imbalance.spread"] = (
                f"found {self.spread:g}, expected 0 or more"
            )
        if self.capacity is not None and not 0.0 < self.capacity < np.inf:
            misfits["strategy.expert_capacity"] = f"found {self.capacity:g}, expected above 0"
        if misfits:
            raise StrategyError(misfits)

    def taken(self, *, experts: int, ranks: int, dropless: bool) -> Floats:
        """Return the tokens processed by each rank, over the mean routed to all, `(ranks,)`.

        What is missing to a mean of 1 is dropped.

        Args:
            experts: Of a layer; rank `r` holds the `r`-th part of them.
            dropless: Whether the software has no capacity.
        """
        shares = self._shares(experts, ranks)
        if self.capacity is not None and not dropless:
            shares = np.minimum(shares, self.capacity)
        return np.asarray(shares.mean(axis=1))

    def _shares(self, experts: int, ranks: int) -> Floats:
        """Return the tokens of each expert over the mean, `(ranks, experts of a rank)`."""
        shares = np.ones((ranks, experts // ranks))
        if self.spread > 0:
            drawn = np.exp(self.spread * np.random.default_rng(self.seed).standard_normal(experts))
            return np.asarray((drawn / drawn.mean()).reshape(shares.shape))
        if ranks > 1:
            busiest = min(self.imbalance, float(ranks))
            shares *= (ranks - busiest) / (ranks - 1.0)
            shares[0] = busiest
        return shares
