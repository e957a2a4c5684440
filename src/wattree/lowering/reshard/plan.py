"""The cheapest way to bring a tensor from a placement on one mesh to a placement on another.

States are placements on either mesh. Collectives and local work lead from one to another on the
same mesh, messages to the other one, where the tensor lands as it is wanted or as parts of that: it
may be cheaper to send parts across and to gather them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from wattree.errors import StrategyError
from wattree.lowering.reshard.moves import Move, MoveKind, joined, moves
from wattree.lowering.reshard.placement import DeviceGrid, TensorPlacement
from wattree.lowering.reshard.search import cheapest
from wattree.lowering.reshard.steps import ReshardStep

#: Step → what it costs, in any unit.
StepPrice = Callable[[ReshardStep], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    """A placement on the source mesh or on the target mesh."""

    arrived: bool
    placement: TensorPlacement


def plan_reshard(
    shape: Sequence[int],
    source: tuple[DeviceGrid, TensorPlacement],
    target: tuple[DeviceGrid, TensorPlacement],
    price: StepPrice,
) -> tuple[ReshardStep, ...]:
    """Return the cheapest steps from one placement of a tensor to another.

    Args:
        shape: Of the whole tensor.
        source: Mesh on its devices, and how the tensor lies there.
        target: The same of where it goes; devices may be others, some of them, or the same.

    Raises:
        StrategyError: A placement does not fit its mesh or the tensor; all misfits are listed.
    """
    if misfits := {
        f"{end}.{place}": reason
        for end, (grid, placement) in (("source", source), ("target", target))
        for place, reason in _misfits(grid, placement, shape)
    }:
        raise StrategyError(misfits)
    (start, have), (end, want) = source, target
    stays = start == end

    def edges(at: _At) -> Iterator[tuple[tuple[float, ...], ReshardStep, _At]]:
        grid = end if at.arrived else start
        sums = want.partial if at.arrived else frozenset[str]()
        for move in moves(at.placement, grid.axes, sums, ordered=True):
            yield priced(at, move, grid)
        if not stays and (at.arrived or at.placement.partial):
            return  # what crosses over are whole values, once
        for landing in landings:
            if not at.placement.partial & set(landing.split):
                after = replace(landing, partial=at.placement.partial)
                yield priced(at, Move(kind=MoveKind.TRANSFER, axes=(), after=after), end)

    def priced(at: _At, move: Move, to: DeviceGrid) -> tuple[tuple[float, ...], ReshardStep, _At]:
        step = ReshardStep(
            kind=move.kind,
            axes=move.axes,
            source=end if at.arrived else start,
            target=to,
            before=at.placement,
            after=move.after,
            shape=tuple(shape),
        )
        sends = move.kind is MoveKind.TRANSFER
        cost = price(step), float(move.kind is not MoveKind.LOCAL), float(sends)
        return cost, step, _At(arrived=at.arrived or sends, placement=move.after)

    landings = tuple(dict.fromkeys(_landings(want, end.axes)))
    return cheapest(
        _At(arrived=stays, placement=have),
        _At(arrived=True, placement=want),
        edges,
        bound=lambda _: (0.0, 0.0, 0.0),
    )


def _landings(want: TensorPlacement, axes: Sequence[str]) -> Iterator[TensorPlacement]:
    """Yield the placements of whole values that one gather, or work on each rank, makes `want`."""
    free = tuple(axis for axis in axes if axis not in want.split)
    for count in range(len(free) + 1):
        for cut in permutations(free, count):
            for shards in joined(want.shards, cut, ordered=True):
                yield TensorPlacement(shards=shards)


def _misfits(
    grid: DeviceGrid, placement: TensorPlacement, shape: Sequence[int]
) -> Iterator[tuple[str, str]]:
    """Yield where a placement does not fit, and why."""
    ranks, devices = grid.mesh.ranks, len(set(grid.devices))
    if not len(grid.devices) == devices == ranks:
        yield (
            "devices",
            f"found {len(grid.devices)} devices, {devices} of them distinct, for {ranks} ranks; "
            "name one for each rank",
        )
    if len(placement.shards) != len(shape):
        yield (
            "placement.shards",
            f"found {len(placement.shards)} dims, expected {len(shape)}, as the tensor has",
        )
    named = [*placement.split, *sorted(placement.partial)]
    for axis in dict.fromkeys(named):
        if axis not in grid.axes:
            yield (
                f"placement.{axis}",
                f"found an axis that the mesh lacks; it has {', '.join(grid.axes)}",
            )
        elif named.count(axis) > 1:
            yield f"placement.{axis}", "found more than once; name each axis once"
