"""Common parts of linear layers over several ranks: shards, parameters, checks, dense weights."""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from wattree.errors import StrategyError
from wattree.runtime.group import Group
from wattree.runtime.layers.initialize import LINEAR_GAIN, rank_generator, uniform_
from wattree.runtime.layers.operator import LayerOperator, run
from wattree.runtime.shards import shard_widths


class LayerSettings(TypedDict, total=False):
    """Keyword arguments of every layer, described in `ShardedLinear`."""

    group: Any
    bias: bool
    overlap: bool
    device: Any
    dtype: Any
    name: str


class ShardedLinear(nn.Module):
    """Base of linear layers over a group.

    Args:
        in_features: Of the whole layer.
        out_features: Of the whole layer.
        group: `Group`, `ProcessGroup` or 1-D `DeviceMesh`; None for all ranks.
        overlap: Whether communication goes on during local products.

    Attributes:
        weight: `(out_shard, in_shard)`.
        bias: `(out_shard,)`, or None.
        in_widths, out_widths: Shard of every rank, or the whole width alone where it is not cut.
            Widths that do not divide are fine.

    Raises:
        StrategyError: A width has fewer features than the group ranks.
    """

    #: Which of `in` and `out` are cut over the ranks.
    cuts: ClassVar[tuple[str, ...]] = ("in", "out")
    #: Whether a rank's weight reads the whole input, although it is cut.
    reads_whole: ClassVar[bool] = False
    _operator: LayerOperator

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        group: Any = None,
        bias: bool = True,
        overlap: bool = True,
        device: Any = None,
        dtype: Any = None,
        name: str = "",
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group, self.overlap = Group.of(group), overlap
        self.name = name or f"{type(self).__name__}({in_features}, {out_features})"
        size, rank = self.group.size, self.group.rank
        widths, misfits = {}, {}
        for side, width in (("in", in_features), ("out", out_features)):
            try:
                widths[side] = shard_widths(width, size if side in self.cuts else 1)
            except StrategyError as error:
                misfits[f"{self.name}.{side}_features"] = next(iter(error.misfits.values()))
        if misfits:
            raise StrategyError(misfits)
        self.in_widths, self.out_widths = widths["in"], widths["out"]
        self.in_shard = self.in_widths[rank if "in" in self.cuts else 0]
        self.out_shard = self.out_widths[rank if "out" in self.cuts else 0]
        columns = in_features if self.reads_whole else self.in_shard
        made = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(self.out_shard, columns, **made))
        self.bias = nn.Parameter(torch.empty(self.out_shard, **made)) if bias else None

    def operator_kwargs(self, **facts: Any) -> dict[str, Any]:
        """Return the arguments that every operator takes.

        Args:
            facts: What all ranks have to agree on, besides what every layer has.
        """
        every = {
            "kind": type(self).__name__,
            "in_features": self.in_features,
            "out_features": self.out_features,
            "bias": self.bias is not None,
        }
        return {
            "group": self.group,
            "place": self.name,
            "overlap": self.overlap,
            "in_features": self.in_shard,
            "facts": every | facts,
        }

    def reset_parameters(self, gain: float = LINEAR_GAIN) -> None:
        """Draw initial values of variance `gain / in_features`."""
        if self.weight.is_meta:
            return
        stream = rank_generator(self.group, self.weight.device)
        uniform_(self.weight, gain / self.in_features, stream)
        self._start_bias(stream)

    def _start_bias(self, stream: torch.Generator | None) -> None:
        if self.bias is not None:
            uniform_(self.bias, LINEAR_GAIN / self.in_features, stream)

    @property
    def communicates(self) -> bool:
        """Return whether the layer is more than a plain one of its own weight."""
        return self.group.size > 1

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out_shard)` of `(…, in_shard)`."""
        if not self.communicates:
            return functional.linear(x, self.weight, self.bias)
        z = run(self._operator, rows_of(x), *self._operands())
        return z.view(*x.shape[:-1], self.out_shard)

    def _operands(self) -> tuple[Tensor | None, ...]:
        return self.weight, self.bias

    def dense_weight(self) -> Tensor:
        """Return the weight of the equivalent `nn.Linear`, on every rank; a collective call.

        Returns:
            `(out_features, in_features)`, without a gradient.
        """
        return self.group.all_gather(self.weight.detach(), self.out_widths, self.name).wait()

    def dense_bias(self) -> Tensor | None:
        """Return the bias `(out_features,)` of the equivalent `nn.Linear`; a collective call."""
        bias: Tensor | None = self.bias
        if bias is None:
            return None
        return self.group.all_gather(bias.detach(), self.out_widths, self.name).wait()

    def extra_repr(self) -> str:
        """Return the text that `print` shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"rank={self.group.rank} of {self.group.size}, "
            f"shard={self.in_shard} to {self.out_shard}, bias={self.bias is not None}"
        )


def rows_of(x: Tensor) -> Tensor:
    """Return `(…, features)` as `(rows, features)`."""
    return x.reshape(-1, x.shape[-1]) if x.dim() else x
