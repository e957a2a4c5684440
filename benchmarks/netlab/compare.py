"""Predictions of scenarios by the executor, and how far they are from what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.netlab.credit import credits_of
from benchmarks.netlab.graph import Share, build_graph
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
        name: Of the scenario.
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

    count: int
    mean_abs_error: float | None
    median_abs_error: float | None
    worst: float | None
    worst_id: str | None
    mean_end_error: float | None


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
        machine: Constants of the emulation.
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
        return Summary(
            count=0,
            mean_abs_error=None,
            median_abs_error=None,
            worst=None,
            worst_id=None,
            mean_end_error=None,
        )
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
