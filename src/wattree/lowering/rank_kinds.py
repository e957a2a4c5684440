"""Pass 6b: kinds of ranks. Ranks of one kind have the same times for the same program.

On a cluster of one kind of node there is one, unless the job names devices on which groups of one
axis are spread unlike each other. Where pools differ, or groups, ranks differ in kind by their
device, by how many members of each of their groups are in the same domain, and by their share of
the links. A stage is compiled once for each kind of rank that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.cost import GroupShape, LinkRates
from wattree.distinct import distinct
from wattree.lowering.block import ModelProgram
from wattree.lowering.links import parts_of_ranks, share_of_one_group
from wattree.lowering.program import CollectiveInstruction, Scale
from wattree.lowering.storage import Storage
from wattree.lowering.topology import MeshTopology, member_counts

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKind:
    """The facts on which the times of a rank depend, besides its program.

    Attributes:
        pool: Number of the pool that its device is of.
        shapes: Axes → shape of its groups as it sees them.
        shares: Axes → part of each kind of link's bandwidth, over that of one rank where all send
            at once, that its group asks for: how much longer its load takes there alone.
    """

    pool: int
    shapes: Mapping[Axes, GroupShape]
    shares: Mapping[Axes, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankKinds:
    """Kinds of ranks, and which each rank is of.

    Attributes:
        of_rank: `(ranks,)`.
    """

    kinds: tuple[RankKind, ...]
    of_rank: Integers

    def of_stage(self, ranks: Integers) -> tuple[int, ...]:
        """Return the kinds among some ranks, ascending."""
        return tuple(np.flatnonzero(np.bincount(self.of_rank[ranks])).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlacement:
    """Group shapes of one kind of rank, where `evaluate` expects an `evaluate.Placement`."""

    shapes: Mapping[Axes, GroupShape]

    def group(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        """Return the shape of the groups over `axes`."""
        del scale
        return self.shapes[tuple(axes)]


def axes_sets(program: ModelProgram, storages: Iterable[Storage]) -> tuple[Axes, ...]:
    """Return every set of mesh axes that a collective of the program may run over, none too."""
    found: dict[Axes, None] = {(): None}
    for block in program.programs:
        for instruction in (*block.forward, *block.recomputation, *block.backward):
            if isinstance(instruction, CollectiveInstruction):
                found[instruction.axes] = None
    for storage in storages:
        for sync in storage.sync:
            sets = (sync.gather_axes, sync.scatter_axes, sync.reduce_axes, sync.update_axes)
            found |= dict.fromkeys(axes for axes in sets if axes)
    return tuple(found)


def rank_kinds(
    topology: MeshTopology,
    sets: Sequence[Axes],
    rates: Sequence[LinkRates],
    *,
    leveled: bool = False,
) -> RankKinds:
    """Return the kinds of ranks of a mesh.

    Args:
        rates: What links reach, by pool.
        leveled: Ranks already differ in how much they have to do; then all nodes are alike, and
            the most spread group of each axes stands for all.
    """
    is_mixed = topology.cluster.is_mixed
    if not is_mixed and (leveled or all(_are_alike(topology, axes) for axes in sets)):
        return _one_kind(topology, sets)
    uses = topology.links()
    everyone = np.arange(topology.mesh.ranks)
    pool = topology.pool_of(everyone)
    parts = [parts_of_ranks(use, pool, rates) for use in uses]
    columns = [pool.astype(np.float64)]
    for axes in sets:
        groups = topology.mesh.groups(axes)
        inside, domains = member_counts(groups, topology.domain_of(groups))
        in_leaf, _ = member_counts(groups, topology.leaf_of(groups))
        columns += [inside, domains, in_leaf]
        for use, part in zip(uses, parts, strict=True):
            if part is None:
                columns.append(np.ones(len(everyone)))
            else:
                columns.append(member_counts(groups, use.of_rank[groups])[0] * part)
    rows, of_rank = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    kinds = tuple(_kind(row, sets, topology, len(uses)) for row in rows)
    return RankKinds(kinds=kinds, of_rank=of_rank.ravel())


def _are_alike(topology: MeshTopology, axes: Axes) -> bool:
    """Return whether all groups have the same spread."""
    groups = topology.mesh.groups(axes)
    spreads = [topology.domain_of(groups), topology.leaf_of(groups)]
    return all(len(distinct(_spread(places), axis=0)) == 1 for places in spreads)


def _spread(places: Integers) -> Integers:
    """Return how many members of each group are in each of its places, the most first."""
    width = int(places.max()) + 1
    keys = np.arange(len(places))[:, None] * width + places
    held, counts = np.unique(keys, return_counts=True)
    group = held // width
    nth = np.arange(len(group)) - np.searchsorted(group, group)
    spread = np.zeros_like(places)
    spread[group, nth] = counts[np.lexsort((-counts, group))]
    return spread


def _one_kind(topology: MeshTopology, sets: Sequence[Axes]) -> RankKinds:
    """Return the kind in which the most spread group of each set of axes represents all."""
    uses = topology.links()
    shared = any(use.ranks_per_link > 1 for use in uses)
    shares = {
        axes: tuple(share_of_one_group(topology.mesh.groups(axes), use) for use in uses)
        for axes in (sets if shared else ())
    }
    kind = RankKind(pool=0, shapes={axes: topology.group(axes) for axes in sets}, shares=shares)
    return RankKinds(kinds=(kind,), of_rank=np.zeros(topology.mesh.ranks, dtype=np.int64))


def _kind(row: Floats, sets: Sequence[Axes], topology: MeshTopology, uses: int) -> RankKind:
    shapes, shares = {}, {}
    filled = topology.filled_of(int(row[0])) if topology.has_even_domains else 0.0
    at = 1
    for axes in sets:
        inside, domains, in_leaf = row[at : at + 3]
        shapes[axes] = GroupShape(
            ranks=np.array([float(topology.mesh.size(axes))]),
            inside=np.array([inside]),
            in_leaf=np.array([in_leaf]),
            domains=np.array([domains]),
            spans=topology.spans(axes),
            filled=np.array([filled]) if filled else None,
            mesh=topology.spans(tuple(topology.strides())),
        )
        shares[axes] = tuple(row[at + 3 : at + 3 + uses].tolist())
        at += 3 + uses
    return RankKind(pool=int(row[0]), shapes=shapes, shares=shares)
