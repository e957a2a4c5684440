"""Profiles of collectives for arrays of groups, one row for each distinct layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wattree.arrays import Flags, Floats, Integers
from wattree.cost.algorithms.layout import GroupLayout
from wattree.cost.algorithms.profile import CollectiveProfile
from wattree.cost.collective import GroupShape
from wattree.errors import CostError
from wattree.hardware import Cluster
from wattree.hardware.topologies import axis_order, slice_shape

_FIELDS = tuple(each.name for each in fields(CollectiveProfile))


class Layouts(NamedTuple):
    """The distinct layouts of groups.

    Attributes:
        distinct: Each once.
        of_group: Number of each group's, `(k,)`.
    """

    distinct: tuple[GroupLayout, ...]
    of_group: Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRows:
    """Profiles by layout, `(layouts,)` each; fields as in `CollectiveProfile`.

    Attributes:
        faults: Why the algorithm cannot serve a layout, by its number.
    """

    scale_up: Floats
    adapter: Floats
    uplink: Floats
    in_turn: Flags
    steps_inside: Floats
    steps_between: Floats
    inside_s: Floats
    hardware: Integers
    faults: dict[int, str]


def layouts_of(group: GroupShape, cluster: Cluster, *, alike_on_switches: bool) -> Layouts:
    """Return the layouts of groups.

    Args:
        group: With spans.
        cluster: Where they are.
        alike_on_switches: Whether it matters only how many members a domain holds.
    """
    assert group.filled is not None
    on_torus = cluster.node.scale_up.kind == "torus" and not alike_on_switches
    columns = [
        column for span in (*group.spans, *(group.mesh if on_torus else ())) for column in span
    ]
    rows = np.stack([*columns, group.filled]).astype(np.int64).T
    distinct, number = np.unique(rows, axis=0, return_inverse=True)
    numbers: dict[GroupLayout, int] = {}
    which = []
    for row in distinct.tolist():
        pairs = list(zip(row[0:-1:2], row[1:-1:2], strict=True))
        layout = GroupLayout(
            spans=_merged(pairs[: len(group.spans)]),
            domain=cluster.domain_devices,
            leaf=cluster.node.devices * cluster.fabric.leaf_nodes,
            filled=row[-1],
            torus=_on_torus(pairs[len(group.spans) :], cluster) if on_torus else (),
        )
        if alike_on_switches:
            layout = layout.on_switches()
        which.append(numbers.setdefault(layout, len(numbers)))
    of_group = np.array(which, dtype=np.int64)[number.ravel()]
    return Layouts(distinct=tuple(numbers), of_group=of_group)


def profile_rows(
    layouts: Sequence[GroupLayout], profile: Callable[[GroupLayout], CollectiveProfile]
) -> ProfileRows:
    """Return the profiles of layouts; groups of one rank cost nothing."""
    found: list[CollectiveProfile | None] = []
    faults = {}
    for number, layout in enumerate(layouts):
        try:
            found.append(profile(layout) if layout.ranks > 1 else None)
        except CostError as error:
            faults[number] = str(error)
            found.append(None)
    table = np.array(
        [
            [getattr(each, name) for name in _FIELDS] if each else [0.0] * len(_FIELDS)
            for each in found
        ]
    ).reshape(-1, len(_FIELDS))
    columns = dict(zip(_FIELDS, table.T, strict=True))
    columns["in_turn"] = columns["in_turn"] > 0
    columns["hardware"] = columns["hardware"].astype(np.int64)
    return ProfileRows(**columns, faults=faults)


def _on_torus(mesh: Sequence[tuple[int, int]], cluster: Cluster) -> tuple[int, ...]:
    """Return the lengths of the axes of a domain's torus as a mesh fills them, last fastest."""
    scale_up, domain = cluster.node.scale_up, cluster.domain_devices
    if scale_up.shape is None:
        return ()
    inside = [span for span in sorted(mesh, key=lambda span: span[1]) if span[1] < domain]
    degrees = tuple(min(degree, domain // stride) for degree, stride in inside if degree > 1)
    return _order(slice_shape(domain, scale_up.shape, scale_up.wrap_unit), degrees)


_order = lru_cache(maxsize=4096)(axis_order)


def _merged(spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return spans of more than one rank, ascending in stride, with contiguous ones merged."""
    merged: list[tuple[int, int]] = []
    for degree, stride in sorted(spans, key=lambda span: span[1]):
        if degree == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * degree, merged[-1][1])
        else:
            merged.append((degree, stride))
    return tuple(merged)
