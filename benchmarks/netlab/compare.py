"""Predictions of scenarios by the executor, and how far they are from what was measured."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.netlab.graph import Built, Share, build_graph
from benchmarks.netlab.machine import Machine
from benchmarks.netlab.scenario import Scenario
from benchmarks.netlab.weights import shares_of
from wattree.sim import execute
from wattree.trace import Trace

#: Plays of one scenario: what links have saved up follows from when they rest, which each play
#: tells better than the one before. Later plays move makespans by less than 0.01 %.
_EXECUTIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """When everything ends.

    Attributes:
        makespan_s: End of the last task. [s]
        start_s, end_s: (task, host) → its start and end. [s]
        trace: Of the executor.
    """

    makespan_s: float
    start_s: Mapping[tuple[str, str], float]
    end_s: Mapping[tuple[str, str], float]
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One scenario, predicted and measured.

    Attributes:
        multiplies: It has matmuls, whose length depends on the machine.
        predicted_s, measured_s: Makespans; None where the file has no measurement. [s]
        end_errors: For each task and host, |predicted - measured end| / measured makespan.
    """

    name: str
    multiplies: bool
    predicted_s: float
    measured_s: float | None
    end_errors: tuple[float, ...]

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1 of the makespan."""
        return None if self.measured_s is None else self.predicted_s / self.measured_s - 1

    @property
    def mean_end_error(self) -> float | None:
        """Mean of `end_errors`; None if there are none."""
        return statistics.fmean(self.end_errors) if self.end_errors else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors over scenarios; None where there is none with a measurement.

    Attributes:
        count: Scenarios with a measurement.
        mean_abs_error, median_abs_error, worst: Of the makespan, all absolute.
        worst_id: The scenario of the worst.
        mean_end_error: Of task ends, as a share of the makespan: mean over tasks and hosts of
            each scenario, then over scenarios.
    """

    count: int = 0
    mean_abs_error: float | None = None
    median_abs_error: float | None = None
    worst: float | None = None
    worst_id: str | None = None
    mean_end_error: float | None = None


def predict(
    scenario: Scenario,
    machine: Machine,
    *,
    sharing: str = "max-min",
    mutual_slowdown: bool = True,
    share_links: bool = True,
) -> Prediction:
    """Return when every task of a scenario starts and ends, from its topology and tasks alone.

    Args:
        scenario: What runs; its measurement is not looked at.
        sharing, mutual_slowdown: As `wattree.sim.execute` knows them.
        share_links: As in `build_graph`.

    Raises:
        HardwareError: A message has no path.
        SimulationError: The tasks wait for each other.
    """
    credit_bytes: Mapping[int, float] = {}
    shares: Mapping[int, Share] = {}
    for execution_number in range(_EXECUTIONS):
        built = build_graph(
            scenario,
            machine,
            credit_bytes=credit_bytes,
            shares=shares,
            share_links=share_links,
        )
        trace = execute(built.graph, sharing=sharing, mutual_slowdown=mutual_slowdown)
        if execution_number < _EXECUTIONS - 1:
            credit_bytes = credits_of(built, trace, machine)
            shares = shares_of(built, trace, queueing=scenario.queueing)
    return Prediction(
        makespan_s=max(float(trace.end_s[task]) for task in built.end.values()),
        start_s={key: float(trace.start_s[task]) for key, task in built.begin.items()},
        end_s={key: float(trace.end_s[task]) for key, task in built.end.items()},
        trace=trace,
    )


def compare(scenario: Scenario, prediction: Prediction) -> Comparison:
    """Return a prediction with what was measured."""
    measured = scenario.measured
    ends = measured.end_s if measured else {}
    return Comparison(
        name=scenario.name,
        multiplies=scenario.multiplies,
        predicted_s=prediction.makespan_s,
        measured_s=measured.makespan_s if measured else None,
        end_errors=tuple(
            abs(prediction.end_s[key] - end_s) / measured.makespan_s
            for key, end_s in ends.items()
            if measured
        ),
    )


def summary(comparisons: Iterable[Comparison]) -> Summary:
    """Return the errors of the scenarios that were measured."""
    known = [(item, item.error) for item in comparisons if item.error is not None]
    errors = {item.name: error for item, error in known}
    if not errors:
        return Summary()
    worst_id = max(errors, key=lambda name: abs(errors[name]))
    ends = [item.mean_end_error for item, _ in known if item.mean_end_error is not None]
    return Summary(
        count=len(errors),
        mean_abs_error=statistics.fmean(map(abs, errors.values())),
        median_abs_error=statistics.median(map(abs, errors.values())),
        worst=abs(errors[worst_id]),
        worst_id=worst_id,
        mean_end_error=statistics.fmean(ends) if ends else None,
    )


class _Passage(NamedTuple):
    """A message on one link: some of it at once, the rest evenly until its end."""

    begin_s: float
    end_s: float
    at_once_bytes: float
    evenly_bytes: float

    def bytes_between(self, from_s: float, to_s: float) -> float:
        """Return what passes in an interval, its ends included. [B]"""
        at_once_bytes = self.at_once_bytes if from_s <= self.begin_s <= to_s else 0.0
        shared_s = min(self.end_s, to_s) - max(self.begin_s, from_s)
        if shared_s <= 0.0:
            return at_once_bytes
        return at_once_bytes + shared_s / (self.end_s - self.begin_s) * self.evenly_bytes


def credits_of(built: Built, trace: Trace, machine: Machine) -> Mapping[int, float]:
    """Return for each message what its path passes at once, given when links were busy. [B]

    A link that carries less than its rate saves up credit, to a limit (a token bucket), and spends
    it on what comes next. Its credit when a message begins is its limit less what passed in the
    time that it takes to save up the limit, which is exact for links that are either full or at
    rest. The first of messages that begin together gets all.
    """
    limit_bytes = machine.credit_bytes
    graph = built.graph
    rates = graph.link_bandwidth_bytes_per_s
    firsts = np.array([transit.tasks[0] for transit in built.transits], dtype=np.int64)
    begins = trace.start_s[firsts] + graph.latency_s[firsts]
    recent: dict[int, deque[_Passage]] = {}
    credit_bytes: dict[int, float] = {}
    for index in np.argsort(begins, kind="stable"):
        transit, begin_s = built.transits[index], float(begins[index])
        end_s = float(trace.end_s[transit.tail])
        credit = min(limit_bytes, transit.size_bytes)
        for link in transit.way.data:
            window_s = limit_bytes / float(rates[link])
            passed = recent.setdefault(link, deque())
            while passed and passed[0].end_s <= begin_s - window_s:
                passed.popleft()
            used_bytes = sum(one.bytes_between(begin_s - window_s, begin_s) for one in passed)
            credit = min(credit, limit_bytes - used_bytes)
        credit = max(0.0, credit)
        credit_bytes[int(index)] = credit
        for link in transit.way.data:
            # The trace was executed with the credit of before, so that is what did not pass evenly.
            evenly_bytes = transit.size_bytes - transit.credit_bytes
            recent[link].append(_Passage(begin_s, end_s, credit, evenly_bytes))
    return credit_bytes
