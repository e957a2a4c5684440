"""Mutual slowdown of overlapping computation and traffic, in closed form.

With `c` seconds of computation alone and `t` of traffic, at rates `a` and `b` side by side,
both are over after `max(c + (1 - a) t / b, t + (1 - b) c / a)`, as long as `a + b > 1`: whichever
is done first leaves the rest of the other to run alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats


@dataclass(frozen=True, slots=True)
class OverlapSlowdown:
    """How computation and traffic slow each other while they overlap.

    Attributes:
        compute_rate: Of computation alongside traffic, `a`.
        communication_rate: Of traffic alongside computation, `b`.
    """

    compute_rate: float
    communication_rate: float

    def lost_s(self, traffic_s: Floats) -> Floats:
        """Return the computation's delay by traffic that ends first. [s]"""
        return (1.0 - self.compute_rate) * traffic_s / self.communication_rate

    def waited_s(self, compute_s: Floats) -> Floats:
        """Return the traffic's delay by computation that ends first. [s]"""
        return (1.0 - self.communication_rate) * compute_s / self.compute_rate

    def added_s(self, traffic_s: Floats, compute_s: Floats, *, overlap: bool) -> Floats:
        """Return the time that traffic adds to a step: all of it, or the exposed part. [s]"""
        if not overlap:
            return traffic_s
        hidden_s = np.minimum(traffic_s / self.communication_rate, compute_s)
        moved_s = hidden_s * self.communication_rate
        return traffic_s - moved_s + (1.0 - self.compute_rate) * hidden_s
