"""Where the mesh lies on the cluster: shapes of process groups and of paths between stages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.cost import GroupShape
from wattree.hardware import Cluster
from wattree.strategy import Mesh

__all__ = ["MeshTopology"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshTopology:
    """A mesh laid on a cluster, rank r on device r.

    Attributes:
        mesh: Ranks as a grid.
        cluster: Devices in order.
    """

    mesh: Mesh
    cluster: Cluster
    _shapes: dict[tuple[str, ...], GroupShape] = field(default_factory=dict, repr=False)

    def domain_of(self, ranks: Integers) -> Integers:
        """Return the scale-up domain of each rank's device."""
        return ranks // self.cluster.domain_devices

    def group(self, axes: tuple[str, ...]) -> GroupShape:
        """Return the shape of the groups over `axes`: that of the most spread group.

        Groups of one mesh differ only where degrees and domains do not divide each other.
        """
        if axes not in self._shapes:
            groups = self.mesh.groups(axes)
            domains = np.sort(self.domain_of(groups), axis=1)
            spread = 1 + (np.diff(domains, axis=1) != 0).sum(axis=1).max(initial=0)
            ranks = float(groups.shape[1])
            self._shapes[axes] = GroupShape(
                ranks=np.array([ranks]), inside=np.array([max(ranks / float(spread), 1.0)])
            )
        return self._shapes[axes]

    def stage_ranks(self, stage: int) -> Integers:
        """Return the ranks of a pipeline stage, ascending."""
        stages = self.mesh.degree("pp")
        if stages == 1:
            return np.arange(self.mesh.ranks)
        return np.flatnonzero(self.mesh.coordinates()["pp"] == stage)

    def crosses(self, senders: Integers, receivers: Integers) -> NDArray[np.bool_]:
        """Return whether each pair lies in different scale-up domains."""
        return np.asarray(self.domain_of(senders) != self.domain_of(receivers))
