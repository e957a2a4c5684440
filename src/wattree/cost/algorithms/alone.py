"""Loads and time of a collective that has the network to itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wattree.arrays import Floats
from wattree.cost.algorithms.messages import MessageSchedule, Round
from wattree.cost.algorithms.protocols import Protocol, base_latency_s, hop_latencies_s
from wattree.cost.algorithms.routes import Crossed, Routes
from wattree.errors import CostError

#: A reduction reads two operands and writes one, as ASTRA-sim counts it.
_MEMORY_PASSES = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneTime:
    """Time of one collective with nothing else in flight.

    Attributes:
        latency_s: Of all steps, without bytes. [s]
        transfer_s: Of the bytes over the busiest link of each step, and of adding them. [s]
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


def time_alone(
    schedule: MessageSchedule,
    routes: Routes,
    *,
    protocol: Protocol | None = None,
    endpoint_s: float = 0.0,
    memory_bytes_per_s: float | None = None,
) -> AloneTime:
    """Return alpha-beta time: every step lasts as long as its slowest message and busiest link.

    Steps of a pipelined schedule overlap: their latencies add up, their bytes take the time of
    the busiest link of all.

    Args:
        schedule: Messages.
        routes: Over the network that carries them.
        protocol: NCCL's, whose latencies take the place of those of the links and which leaves a
            fraction of the bandwidth; None for the links as they are.
        endpoint_s: Added to every step. [s]
        memory_bytes_per_s: Of a rank's memory, through which every reduced byte passes three
            times; None where that costs nothing. [B/s]

    Raises:
        CostError: A rank is not in the network or cannot be reached, or a number is negative.
    """
    if endpoint_s < 0 or (memory_bytes_per_s is not None and memory_bytes_per_s <= 0):
        raise CostError(
            f"endpoint time {endpoint_s} s and memory bandwidth {memory_bytes_per_s} B/s, expected "
            "0 s or more and above 0 B/s"
        )
    fraction = 1.0 if protocol is None else protocol.bandwidth_fraction
    rates = routes.bandwidth_bytes_per_s * fraction
    latency = base_latency_s(schedule.algorithm, protocol) if schedule.rounds else 0.0
    transfer = added = 0.0
    loads = np.zeros(len(rates))
    places = routes.places(schedule.vertices if schedule.rounds else ())
    for each in schedule.rounds:
        crossed = routes.crossed(places[each.sender], places[each.receiver])
        alpha = _message_latency_s(schedule, routes, crossed, protocol)
        for hop in each.hops():
            steps = each.repeats / schedule.lanes
            latency += steps * (float(alpha[hop].max(initial=0.0)) + endpoint_s)
            if not schedule.pipelined:
                transfer += _hop_transfer_s(
                    schedule, routes, each, hop, crossed=crossed, rates=rates
                )
            if each.reduces and memory_bytes_per_s is not None:
                largest = float(schedule.carried_bytes(each)[hop].max(initial=0.0))
                added += _MEMORY_PASSES * largest / memory_bytes_per_s / schedule.lanes
        if schedule.pipelined:
            loads += routes.loads_bytes(crossed, schedule.carried_bytes(each))
    if schedule.pipelined:
        transfer = float((loads / rates).max(initial=0.0))
    return AloneTime(latency_s=latency, transfer_s=transfer + added)


def _message_latency_s(
    schedule: MessageSchedule, routes: Routes, crossed: Crossed, protocol: Protocol | None
) -> Floats:
    if protocol is None:
        return crossed.latency_s[crossed.route]
    return hop_latencies_s(schedule.algorithm, protocol)[routes.hardware(crossed)]


def _hop_transfer_s(
    schedule: MessageSchedule,
    routes: Routes,
    each: Round,
    hop: slice,
    *,
    crossed: Crossed,
    rates: Floats,
) -> float:
    """Return the time of the busiest link in one hop, over all repeats. [s]"""
    part = crossed._replace(route=crossed.route[hop])
    if schedule.is_uniform():
        loads = routes.loads_bytes(part, schedule.message_bytes(each, 0)[hop])
        return each.repeats * float((loads / rates).max(initial=0.0))
    return sum(
        float((routes.loads_bytes(part, schedule.message_bytes(each, t)[hop]) / rates).max())
        for t in range(each.repeats)
    )
