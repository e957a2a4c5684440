"""Pass 1d: finds the ranks over which batch norm computes its statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattree.graph import Operator, OperatorKind
from wattree.lowering.passes.propagate import Split
from wattree.lowering.program import LocalSize
from wattree.strategy import Choices

#: Statistics are reduced in fp32, whatever the activations are kept in (torch.nn.SyncBatchNorm).
STATISTICS_BYTES = 4.0


def statistics_axes(
    operators: Sequence[Operator], splits: Sequence[Split], choices: Sequence[Choices]
) -> Mapping[str, tuple[str, ...]]:
    """Return path → axes over which the statistics of a batch norm are summed, if over any.

    They are sums over all dims but that of the channels, so axes that split any other dim count.
    """
    found = {}
    for operator, split, choice in zip(operators, splits, choices, strict=True):
        if operator.kind is not OperatorKind.BATCH_NORM or not choice.sync_batch_norm:
            continue
        channels = channels_of(operator)
        axes = tuple(axis for dim, of_dim in split.items() if dim != channels for axis in of_dim)
        if axes:
            found[operator.path] = axes
    return found


def channels_of(operator: Operator) -> str | None:
    """Return the dim of the statistics: that of the scale, or the second one."""
    if operator.parameters:
        return operator.parameters[0].dims[0]
    dims = operator.outputs[0].dims
    return dims[1] if len(dims) > 1 else None


def statistics(operator: Operator, split: Split) -> LocalSize:
    """Return what is reduced: sum and sum of squares in forward, two sums per channel in backward.

    The count that goes with the former (a value for all channels) is left out.
    """
    name = channels_of(operator)
    if name is None:
        return LocalSize(2.0)
    return LocalSize.of(operator.dim(name).extent, split.get(name, ())).scaled(2.0)
