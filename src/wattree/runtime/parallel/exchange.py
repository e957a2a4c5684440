"""All-to-all exchanges of rows, and who shares the experts of a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from wattree.runtime.regions import crossed

if TYPE_CHECKING:
    from wattree.runtime.train.session import RankSession


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """Which experts of a layer this rank has, and who has the others.

    Attributes:
        size: Ranks that share the experts.
        rank: This one's number among them.
        over_tensor: Ranks of tp are among them, each with positions and whole experts of its own.
    """

    size: int = 1
    rank: int = 0
    process_group: Any = None
    over_tensor: bool = False


def expert_share(session: RankSession) -> ExpertShare:
    """Return which experts of each layer a rank has."""
    recipe = session.recipe
    if session.expert_group is None:
        return ExpertShare()
    return ExpertShare(
        size=math.prod(recipe.options.degrees[axis] for axis in recipe.expert_axes),
        rank=recipe.grid.index(session.rank, recipe.expert_axes),
        process_group=session.expert_group,
        over_tensor=recipe.expert_over_tensor,
    )


def exchanged(
    x: Tensor,
    group: Any,
    received: Sequence[int] | None = None,
    sent: Sequence[int] | None = None,
) -> Tensor:
    """Return the rows that each rank has for this one; gradients take the reverse path.

    Args:
        x: Rows for each rank, one after another, `(n, …)`.
        received, sent: Rows from, and for, each rank; None where all are equal.
    """
    return crossed(
        x,
        lambda rows: _sent(rows, group, received, sent),
        lambda rows: _sent(rows, group, sent, received),
    )


def _sent(
    x: Tensor, group: Any, received: Sequence[int] | None, sent: Sequence[int] | None
) -> Tensor:
    rows = x.shape[0] if received is None else sum(received)
    found = x.new_empty(rows, *x.shape[1:])
    dist.all_to_all_single(found, x.contiguous(), received, sent, group=group)
    return found
