"""The layers of a contestant."""

from __future__ import annotations

from enum import Enum, auto

from torch import nn

from benchmarks.phantom_contestants import Contestant
from wattree.runtime.group import Group
from wattree.runtime.layers import (
    ColumnParallelLinear,
    GatherRowsLinear,
    LowRankLinear,
    PhantomLinear,
    RowParallelLinear,
)


class Layout(Enum):
    """What of the samples a rank is fed, and what of the last layer's output it holds."""

    WHOLE = auto()
    FEATURES = auto()
    SAMPLES = auto()


_LAYOUTS = {"megatron": Layout.WHOLE, "sequence": Layout.SAMPLES}


def stack_of(contestant: Contestant, group: Group) -> tuple[list[nn.Module], Layout]:
    """Return a rank's layers in order, and the layout of what goes in and comes out."""
    layers = [_layer(contestant, group, number) for number in range(contestant.depth)]
    return layers, _LAYOUTS.get(contestant.kind, Layout.FEATURES)


def _layer(contestant: Contestant, group: Group, number: int) -> nn.Module:
    n, ghosts = contestant.width, contestant.ghosts
    common = {"group": group, "overlap": contestant.overlap, "name": f"layers.{number}"}
    match contestant.kind:
        case "phantom" | "shared" | "block":
            variant = "shared" if contestant.kind == "shared" else "pair"
            return PhantomLinear(n, n, ghosts=ghosts, variant=variant, **common)
        case "low-rank":
            return LowRankLinear(n, n, ghosts=ghosts, **common)
        case "rows":
            return GatherRowsLinear(n, n, **common)
        case "megatron" | "sequence":
            kind = RowParallelLinear if number % 2 else ColumnParallelLinear
            return kind(n, n, sequence_parallel=contestant.kind == "sequence", **common)
    raise ValueError(contestant.kind)
