"""Pass 10a: the parts of process groups that share a link.

What a group sends over a link is what its ranks there send, so ranks are alike only if as many
ranks of their groups, with the same loads, are on their links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattree.arrays import Integers
from wattree.compiler.folding.fold import group_colors
from wattree.lowering.links import members_by_link


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkParts:
    """The part of its group that is on a rank's link, by kind of link, `(kinds, ranks)`.

    Attributes:
        ranks: How many ranks it has.
        kind: Parts with the same number send as much.
    """

    ranks: Integers
    kind: Integers

    def of(self, chosen: Integers) -> LinkParts:
        """Return those of some ranks."""
        return LinkParts(ranks=self.ranks[:, chosen], kind=self.kind[:, chosen])


def link_parts(
    groups: Mapping[int, Integers], links: Sequence[Integers], loads: Integers
) -> dict[int, LinkParts]:
    """Return the parts of each kind of group; none if no two ranks share a link.

    Args:
        groups: Axes number → process groups, `(groups, members)`.
        links: Link of each rank, by kind.
        loads: Ranks with the same number send as much.
    """
    if all(np.bincount(of_rank).max(initial=0) <= 1 for of_rank in links):
        return {}
    found = {}
    for number, members in groups.items():
        parts = [_group_and_link(members, of_rank) for of_rank in links]
        found[number] = LinkParts(
            ranks=np.stack([np.bincount(part)[part] for part in parts]),
            kind=np.stack([_kinds(part, loads) for part in parts]),
        )
    return found


def distinguished(colors: Integers, parts: Mapping[int, LinkParts]) -> Integers:
    """Return colors of ranks that also distinguish the kinds of their parts."""
    rows = [kind for part in parts.values() for kind in part.kind if (kind != kind[0]).any()]
    if not rows:
        return colors
    found = np.unique(np.stack([colors, *rows], axis=1), axis=0, return_inverse=True)[1]
    return np.asarray(found.ravel(), dtype=np.int64)


def _group_and_link(members: Integers, links: Integers) -> Integers:
    """Number ranks so that those of one group on one link have the same number."""
    group = np.empty(len(links), dtype=np.int64)
    group[members] = np.arange(len(members))[:, None]
    number = np.unique(group * (links.max() + 1) + links, return_inverse=True)[1]
    return np.asarray(number.ravel(), dtype=np.int64)


def _kinds(part: Integers, loads: Integers) -> Integers:
    members = members_by_link(part)
    return loads if members is None else group_colors(loads, members)
