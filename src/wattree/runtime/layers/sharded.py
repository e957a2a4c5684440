"""What linear layers over several ranks share: shards, checks, the dense equivalent."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wattree.errors import CommunicationError, StrategyError
from wattree.runtime.group import Group
from wattree.runtime.shards import shard_offsets, shard_widths

__all__ = ["ShardedLinear"]


class ShardedLinear(nn.Module):
    """Base of linear layers over a group.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        overlap: Whether communication goes on during local products.
        name: What messages call the layer.

    Attributes:
        in_widths, out_widths: Shard of every rank. Widths that do not divide are fine.
        in_shard, out_shard: Of this rank.

    Raises:
        StrategyError: A width has fewer features than the group ranks.
    """

    def __init__(
        self, in_features: int, out_features: int, *, group: Any, overlap: bool, name: str
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group, self.overlap = Group.of(group), overlap
        self.name = name or f"{type(self).__name__}({in_features}, {out_features})"
        size, rank = self.group.size, self.group.rank
        widths = {}
        misfits = {}
        for key, width in (("in_features", in_features), ("out_features", out_features)):
            try:
                widths[key] = shard_widths(width, size)
            except StrategyError as error:
                misfits[f"{self.name}.{key}"] = next(iter(error.misfits.values()))
        if misfits:
            raise StrategyError(misfits)
        self.in_widths, self.out_widths = widths["in_features"], widths["out_features"]
        self.in_shard, self.out_shard = self.in_widths[rank], self.out_widths[rank]
        self._agreed: dict[tuple[Any, ...], list[dict[str, Any]]] = {}

    def facts(self) -> dict[str, Any]:
        """Return what all ranks of the group have to agree on."""
        return {
            "kind": type(self).__name__,
            "name": self.name,
            "in_features": self.in_features,
            "out_features": self.out_features,
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

    def agreed(self, x: Tensor, **more: Any) -> list[dict[str, Any]]:
        """Return what every rank says of a call, after a comparison at the first such call.

        Args:
            x: Input `(…, features)`.
            more: Further facts; those of names that begin with `own_` may differ.
        """
        key = (tuple(x.shape[:-1]), x.dtype, x.device.type, *more.values())
        found = self._agreed.get(key)
        if found is None:
            self.group.check_device(x.device, self.name)
            said = self.facts() | {"dtype": str(x.dtype)} | more
            if "own_rows" not in more:
                said["rows"] = x.numel() // x.shape[-1]
            found = self._agreed[key] = self.group.compare(said, self.name, x.device)
        return found

    def check_input(self, x: Tensor, features: int) -> None:
        """Refuse inputs of another width, type or device than the layer's."""
        if x.dim() < 1 or x.shape[-1] != features:
            raise CommunicationError(
                f"{self.at}: input has shape {tuple(x.shape)}, but its last dim should be "
                f"{features} here"
            )

    @property
    def at(self) -> str:
        """Return where a message comes from."""
        return f"rank {self.group.rank} of {self.group.size}, layer '{self.name}'"

    @property
    def in_offsets(self) -> tuple[int, ...]:
        """Return where the input shards begin."""
        return shard_offsets(self.in_widths)
