"""What linear layers over several ranks share: shards, checks, the dense equivalent."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wattree.errors import StrategyError
from wattree.runtime.group import Group
from wattree.runtime.shards import shard_widths

__all__ = ["ShardedLinear", "rows_of"]


class ShardedLinear(nn.Module):
    """Base of linear layers over a group.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        overlap: Whether communication goes on during local products.
        name: What messages call the layer.
        cuts: Which of `in` and `out` are cut over the ranks.

    Attributes:
        in_widths, out_widths: Shard of every rank, or the whole width alone where it is not cut.
            Widths that do not divide are fine.
        in_shard, out_shard: Of this rank.

    Raises:
        StrategyError: A width has fewer features than the group ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Any,
        overlap: bool,
        name: str,
        cuts: tuple[str, ...] = ("in", "out"),
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group, self.overlap = Group.of(group), overlap
        self.name = name or f"{type(self).__name__}({in_features}, {out_features})"
        size, rank = self.group.size, self.group.rank
        widths, misfits = {}, {}
        for side, width in (("in", in_features), ("out", out_features)):
            try:
                widths[side] = shard_widths(width, size if side in cuts else 1)
            except StrategyError as error:
                misfits[f"{self.name}.{side}_features"] = next(iter(error.misfits.values()))
        if misfits:
            raise StrategyError(misfits)
        self.in_widths, self.out_widths = widths["in"], widths["out"]
        self.in_shard = self.in_widths[rank if "in" in cuts else 0]
        self.out_shard = self.out_widths[rank if "out" in cuts else 0]

    def told(self, features: int, **facts: Any) -> dict[str, Any]:
        """Return what every operator is told.

        Args:
            features: Last dim of the input on this rank.
            facts: What all ranks have to agree on, besides what every layer has.
        """
        every = {
            "kind": type(self).__name__,
            "in_features": self.in_features,
            "out_features": self.out_features,
        }
        return {
            "group": self.group,
            "place": self.name,
            "overlap": self.overlap,
            "in_features": features,
            "facts": every | facts,
        }

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        raise NotImplementedError

    def dense_bias(self) -> Tensor | None:
        """Return the bias `(out_features,)` of the equivalent `nn.Linear`; a collective call."""
        bias: Tensor | None = self.bias
        if bias is None:
            return None
        return self.group.all_gather(bias.detach(), self.out_widths, self.name).wait()

    def extra_repr(self) -> str:
        """Return what `print` shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"rank={self.group.rank} of {self.group.size}, "
            f"shard={self.in_shard} to {self.out_shard}, bias={self.bias is not None}"
        )


def rows_of(x: Tensor) -> Tensor:
    """Return `(…, features)` as `(rows, features)`."""
    return x.reshape(-1, x.shape[-1]) if x.dim() else x
