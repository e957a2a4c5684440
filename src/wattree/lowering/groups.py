"""Shapes of process groups in the topology, for the costs of their collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from wattree.arrays import Floats
from wattree.cost import GroupShape
from wattree.lowering.program import Scale


class GroupShapes(Protocol):
    """The positions of a mesh's groups in the topology."""

    def group(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        """Return the shape of the groups over `axes` together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The positions of mesh axes in the topology.

    Attributes:
        inside: Returns the members of a group over axes in one scale-up domain, shape `(n,)`.
        in_leaf: The same under one leaf switch.
        domains: Returns the domains that such a group lies in.
        stride: Axis → ranks from one member to the next, shape `(n,)`.
        filled: Devices of one scale-up domain that the job uses, shape `(n,)`.
        mesh: Axis → degree and stride in the mesh that lies on a torus, shape `(n,)` each.
    """

    inside: Callable[[Sequence[str]], Floats]
    in_leaf: Callable[[Sequence[str]], Floats]
    domains: Callable[[Sequence[str]], Floats]
    stride: Mapping[str, Floats]
    filled: Floats
    mesh: Mapping[str, tuple[Floats, Floats]] = field(default_factory=dict)
    _shapes: dict[tuple[tuple[str, ...], int], tuple[Scale, GroupShape]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def group(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        """Return the shape of the groups over `axes` together, cached per scale."""
        key = tuple(axes), id(scale)
        if key not in self._shapes:
            self._shapes[key] = scale, self._shape(axes, scale)
        return self._shapes[key][1]

    def _shape(self, axes: Sequence[str], scale: Scale) -> GroupShape:
        one = np.ones_like(scale.micro_batch)
        return GroupShape(
            ranks=scale.degree(tuple(axes)),
            inside=self.inside(axes) * one,
            in_leaf=self.in_leaf(axes) * one,
            domains=self.domains(axes) * one,
            spans=tuple(
                (scale.degree((axis,)) * one, self.stride[axis] * one)
                for axis in axes
                if axis in self.stride
            ),
            filled=self.filled * one,
            mesh=tuple(self.mesh.values()),
        )
