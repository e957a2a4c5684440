"""Location of the groups of a mesh axis: all groups of the axis, device by device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from wattree.arrays import Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLayout:
    """The groups along some axes of a mesh that places rank r on device r. Hashable.

    Attributes:
        spans: Degree and stride of each axis of the groups with more than one rank, strides
            ascending: a group is `base + sum(c_i * stride_i)` for `c_i` below `degree_i`.
        domain: Devices of one scale-up domain.
        leaf: Devices under one leaf switch.
        filled: Devices of a domain that the job uses; their groups send at the same time.
        torus: Lengths of the axes of the domain's torus as the mesh fills them, last fastest;
            empty: as the wiring has them.
    """

    spans: tuple[tuple[int, int], ...]
    domain: int
    leaf: int
    filled: int
    torus: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        """Members of one group."""
        return prod(degree for degree, _ in self.spans)

    @property
    def offsets(self) -> Integers:
        """Members of a group counted from its first, ascending. Shape `(ranks,)`."""
        offsets = np.zeros(1, dtype=np.int64)
        for degree, stride in self.spans:
            offsets = (np.arange(degree)[:, None] * stride + offsets).ravel()
        return np.sort(offsets)

    def bases(self) -> Integers:
        """Return the first member of each group that starts in the first domain, ascending."""
        devices = np.arange(self.filled)
        first = np.ones(self.filled, dtype=bool)
        for degree, stride in self.spans:
            first &= devices // stride % degree == 0
        return devices[first]

    def split(self) -> tuple[tuple[tuple[int, int], ...], int] | None:
        """Return the spans inside a domain, and the number of domains of a group.

        None where domains hold unequal parts of a group.
        """
        inside: list[tuple[int, int]] = []
        domains = 1
        for degree, stride in self.spans:
            here = min(degree, max(self.domain // stride, 1)) if stride < self.domain else 1
            fills = here == degree or (here * stride == self.domain and degree % here == 0)
            starts = stride >= self.domain and stride % self.domain == 0
            if not (starts or (stride < self.domain and fills)):
                return None
            if stride < self.domain and self.domain % (here * stride):
                return None
            if here > 1:
                inside.append((here, stride))
            domains *= degree // here
        return tuple(inside), domains

    def with_domains(self, most: int) -> GroupLayout:
        """Return a layout of the same groups, limited to this number of domains.

        Only where domains hold equal parts of a group; otherwise the layout itself.
        """
        split = self.split()
        if split is None or split[1] <= most:
            return self
        return replace(self, spans=(*split[0], (most, self.domain)))

    def on_switches(self) -> GroupLayout:
        """Return one canonical layout for all layouts that are equivalent behind switches.

        Members of a domain stand side by side, those of others in the domains that follow.
        """
        split = self.split()
        if split is None:
            return self
        members, domains = prod(degree for degree, _ in split[0]), split[1]
        spans = ((members, 1), (domains, self.domain))
        return replace(
            self,
            spans=tuple(span for span in spans if span[0] > 1),
            leaf=self.domain * max(domains, 1),
            filled=self.domain,
        )

    def torus_axes(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the lengths of the parts of a torus's axes that the groups hold, last fastest.

        Args:
            shape: Of the domain's torus, last axis fastest.

        Returns:
            None where a group leaves the domain, or is no box of its devices.
        """
        axes: list[int] = []
        for degree, stride in self.spans:
            if stride * degree > prod(shape):
                return None
            end = 1
            for length in reversed(shape):
                first, end = end, end * length
                inner, outer = max(first, stride), min(end, stride * degree)
                if inner < outer:
                    if inner % first or outer % inner or end % outer:
                        return None
                    axes.append(outer // inner)
        return tuple(reversed(axes)) or None
