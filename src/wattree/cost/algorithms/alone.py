"""Loads and time of a collective that has the network to itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost.algorithms.messages import MessageSchedule, Round
from wattree.cost.algorithms.routes import Crossed, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneTime:
    """Time of one collective with nothing else in flight.

    Attributes:
        latency_s: Of all steps, without bytes. [s]
        transfer_s: Of the bytes over the busiest link of each step. [s]
    """

    latency_s: float
    transfer_s: float

    @property
    def total_s(self) -> float:
        """Return both together. [s]"""
        return self.latency_s + self.transfer_s


def link_loads(schedule: MessageSchedule, routes: Routes) -> Floats:
    """Return what a collective puts on every link of the network. Shape `(links,)`. [B]

    Raises:
        CostError: A rank is not in the network or cannot be reached.
    """
    total = np.zeros(len(routes.bandwidth_bytes_per_s))
    places = routes.places(schedule.vertices if schedule.rounds else ())
    for each in schedule.rounds:
        crossed = routes.crossed(places[each.sender], places[each.receiver])
        total += routes.loads_bytes(crossed, schedule.carried_bytes(each))
    return total


def time_alone(schedule: MessageSchedule, routes: Routes) -> AloneTime:
    """Return alpha-beta time: every step lasts as long as its slowest message and busiest link.

    Steps of a pipelined schedule overlap: their latencies add up, their bytes take the time of
    the busiest link of all.

    Args:
        schedule: Messages.
        routes: Over the network that carries them.

    Raises:
        CostError: A rank is not in the network or cannot be reached.
    """
    latency = transfer = 0.0
    places = routes.places(schedule.vertices if schedule.rounds else ())
    for each in schedule.rounds:
        crossed = routes.crossed(places[each.sender], places[each.receiver])
        alpha = crossed.latency_s[crossed.route]
        for hop in each.hops():
            latency += each.repeats / schedule.lanes * float(alpha[hop].max(initial=0.0))
            if not schedule.pipelined:
                transfer += _hop_transfer_s(schedule, routes, each, hop, crossed)
    if schedule.pipelined:
        loads = link_loads(schedule, routes)
        transfer = float((loads / routes.bandwidth_bytes_per_s).max(initial=0.0))
    return AloneTime(latency_s=latency, transfer_s=transfer)


def _hop_transfer_s(
    schedule: MessageSchedule, routes: Routes, each: Round, hop: slice, crossed: Crossed
) -> float:
    """Return the time of the busiest link in one hop, over all repeats. [s]"""
    rates = routes.bandwidth_bytes_per_s
    part = crossed._replace(route=crossed.route[hop])
    if schedule.is_uniform():
        loads = routes.loads_bytes(part, schedule.message_bytes(each, 0)[hop])
        return each.repeats * float((loads / rates).max(initial=0.0))
    return sum(
        float((routes.loads_bytes(part, schedule.message_bytes(each, t)[hop]) / rates).max())
        for t in range(each.repeats)
    )
