"""How computation and traffic slow each other while they overlap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost.rates import Rates


@dataclass(frozen=True, slots=True)
class OverlapSlowdown:
    """How computation and traffic slow each other while they overlap.

    With `c` seconds of computation alone and `t` of traffic, at rates `a` and `b` side by side,
    both are over after `max(c + (1 - a) t / b, t + (1 - b) c / a)`, as long as `a + b > 1`:
    whichever is done first leaves the rest of the other to run alone.

    Attributes:
        compute_rate: Of computation alongside traffic, `a`.
        communication_rate: Of traffic alongside computation, `b`.
    """

    compute_rate: Floats | float
    communication_rate: Floats | float

    @classmethod
    def of(cls, rates: Rates) -> OverlapSlowdown:
        """Return that of devices."""
        return cls(rates.overlap_compute_rate, rates.overlap_communication_rate)

    def at_work(self, share: Floats | float) -> OverlapSlowdown:
        """Return that of traffic with this share of work; its latency neither slows nor is slowed.

        Its rates are the mean ones over the time that the traffic takes.
        """
        work = share / self.communication_rate
        lasts = 1.0 - share + work
        return OverlapSlowdown(1.0 - (1.0 - self.compute_rate) * work / lasts, 1.0 / lasts)

    def lost_s(self, traffic_s: Floats) -> Floats:
        """Return the computation's delay by traffic that ends first. [s]"""
        return (1.0 - self.compute_rate) * traffic_s / self.communication_rate

    def waited_s(self, compute_s: Floats) -> Floats:
        """Return the traffic's delay by computation that ends first. [s]"""
        return (1.0 - self.communication_rate) * compute_s / self.compute_rate

    def hidden_s(self, traffic_s: Floats, compute_s: Floats) -> Floats:
        """Return how long traffic runs alongside computation that begins with it. [s]"""
        return np.minimum(traffic_s / self.communication_rate, compute_s)

    def saved_s(self, overlapped_s: Floats) -> Floats:
        """Return what an overlap saves over one after the other. [s]"""
        return (self.compute_rate + self.communication_rate - 1.0) * overlapped_s

    def overlapped_s(self, compute_s: Floats, traffic_s: Floats, together_s: Floats) -> Floats:
        """Return how long both run at once, if they take `together_s` without a pause. [s]"""
        gain = np.maximum(self.compute_rate + self.communication_rate - 1.0, 1e-9)
        most = np.minimum(traffic_s / self.communication_rate, compute_s / self.compute_rate)
        both_s = (compute_s + traffic_s - together_s) / gain
        return np.asarray(np.minimum(np.maximum(both_s, 0.0), most))
