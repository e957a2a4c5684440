"""The placement of a tensor on the axes of a mesh, and the part of each device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wattree.arrays import Integers
from wattree.strategy import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlacement:
    """The placement of a tensor on a mesh. Axes that are not named hold replicas.

    Attributes:
        shards: Of each dim of the tensor, the axes that split it, outermost first.
        partial: Axes whose ranks hold summands.
    """

    shards: tuple[tuple[str, ...], ...]
    partial: frozenset[str] = frozenset()

    @property
    def split(self) -> tuple[str, ...]:
        """Axes that split any dim."""
        return tuple(axis for axes in self.shards for axis in axes)

    def replicas(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Return those of `axes` that hold replicas."""
        used = {*self.split, *self.partial}
        return tuple(axis for axis in axes if axis not in used)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrid:
    """A mesh on devices.

    Attributes:
        mesh: Ranks as a grid.
        devices: Device of each rank, each once.
    """

    mesh: Mesh
    devices: tuple[int, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the mesh's axes."""
        return tuple(axis for axis, _ in self.mesh.axes)


@lru_cache(maxsize=4096)  # a search prices the same placements again and again
def regions(mesh: Mesh, placement: TensorPlacement, shape: tuple[int, ...]) -> Integers:
    """Return first and last index but one of each rank's part, `(ranks, dims, 2)`.

    Parts of what does not divide differ by one index.
    """
    coordinates = mesh.coordinates()
    found = np.zeros((mesh.ranks, len(shape), 2), dtype=np.int64)
    found[:, :, 1] = shape
    for dim, axes in enumerate(placement.shards):
        for axis in axes:
            low, length = found[:, dim, 0].copy(), found[:, dim, 1] - found[:, dim, 0]
            place, degree = coordinates[axis], mesh.degree(axis)
            found[:, dim, 0] = low + length * place // degree
            found[:, dim, 1] = low + length * (place + 1) // degree
    found.flags.writeable = False
    return found


def volumes(of: Integers) -> Integers:
    """Return the elements of regions, `(..., dims, 2)` to `(...)`."""
    return np.asarray(np.clip(of[..., 1] - of[..., 0], 0, None).prod(axis=-1))


def common(left: Integers, right: Integers) -> Integers:
    """Return the intersection of regions, of shapes that broadcast."""
    low = np.maximum(left[..., 0], right[..., 0])
    return np.stack([low, np.minimum(left[..., 1], right[..., 1])], axis=-1)
