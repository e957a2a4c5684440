"""Simpler models of the energy of a run, as baselines for the stage model. Pure functions.

All compute power per node from a run's utilization, and are calibrated on the same runs as
the stage model. They get the length of the runs that they are scored on, and all but L4 the
utilization, which a prediction would not have.

References:
    [1] X. Fan, W.-D. Weber, L. A. Barroso, "Power Provisioning for a Warehouse-sized Computer",
        ISCA 2007, doi:10.1145/1250662.1250665: affine in utilization, and `2u - u^r` with r = 1.4.
    [2] D. Economou, S. Rivoire, C. Kozyrakis, P. Ranganathan, "Full-System Power Analysis and
        Modeling for Server Environments" (Mantis), MoBS 2006: additive by component.
    [3] M. Dayarathna, Y. Wen, R. Fan, "Data Center Energy Consumption Modeling: A Survey", IEEE
        Communications Surveys & Tutorials 18(1), 2016, doi:10.1109/COMST.2015.2481183.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from wattree.arrays import Floats
from wattree.energy.least_squares import dependent_columns, non_negative_fit
from wattree.errors import BaselineError
from wattree.trace.run import Activity, Run

#: Energy of a run. [J]
Predictor = Callable[[Run], float]

#: Components whose utilization an additive model may use.
_COMPONENTS = ("cpu", "accelerator", "memory", "network", "storage")
#: Exponents that the non-linear model tries; Fan et al. found 1.4.
_EXPONENTS = np.linspace(1.0, 4.0, 61)


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A simpler model.

    Attributes:
        title: For people.
        formula: The formula of power, in the letters of docs/energy.md.
        knows: Measured inputs that it gets of the runs that it is scored on.
        fit: Runs → what predicts the energy of one; raises `BaselineError`.
    """

    title: str
    formula: str
    fit: Callable[[Sequence[Run]], Predictor]
    knows: str = "length, utilization"


def main_utilization(run: Run) -> float | None:
    """Return the utilization of the main compute devices: accelerators, or processors if none."""
    return run.utilization.get("accelerator", run.utilization.get("cpu"))


def _node_s(run: Run) -> float:
    return run.nodes * run.wall_s


def _utilization(run: Run) -> float:
    found = main_utilization(run)
    if found is None:
        raise BaselineError(f"{run.name} has no utilization.accelerator and no utilization.cpu")
    return found


def _training(runs: Sequence[Run]) -> list[Run]:
    found = [run for run in runs if run.activity is Activity.TRAINING]
    if not found:
        raise BaselineError("no training run to calibrate on")
    return found


def _solved(runs: Sequence[Run], columns: Floats) -> Floats:
    """Return non-negative coefficients of `columns x = energy`; all runs have equal weight."""
    energy = np.array([run.energy_j for run in runs])
    used = np.flatnonzero((columns > 0).any(axis=0)).tolist()
    if not used:
        raise BaselineError("all utilizations are zero")
    dependent = dependent_columns(columns / energy[:, None], used)
    kept = [column for column in used if column not in dependent]
    values = np.zeros(columns.shape[1])
    values[kept] = non_negative_fit(columns[:, kept], energy, 1.0 / energy).values
    return values


def _proportional(runs: Sequence[Run]) -> Predictor:
    rows = _training(runs)
    columns = np.array([[_utilization(run) * _node_s(run)] for run in rows])
    (slope,) = _solved(rows, columns).tolist()
    return lambda run: slope * _utilization(run) * _node_s(run)


def _resting_or_training(runs: Sequence[Run]) -> list[Run]:
    idle = [run for run in runs if run.activity is Activity.IDLE]
    return [*idle, *_training(runs)]


def _share(run: Run, component: str) -> float:
    """Return a utilization; 0 for idle runs."""
    if run.activity is Activity.IDLE:
        return run.utilization.get(component, 0.0)
    return run.utilization[component]


def _main_share(run: Run) -> float:
    return (main_utilization(run) or 0.0) if run.activity is Activity.IDLE else _utilization(run)


def _affine(runs: Sequence[Run]) -> Predictor:
    rows = _resting_or_training(runs)
    columns = np.array([[_node_s(run), _main_share(run) * _node_s(run)] for run in rows])
    idle, slope = _solved(rows, columns).tolist()
    return lambda run: (idle + slope * _main_share(run)) * _node_s(run)


def _additive(runs: Sequence[Run]) -> Predictor:
    rows = _resting_or_training(runs)
    trained = _training(runs)
    known = [each for each in _COMPONENTS if all(each in run.utilization for run in trained)]
    if not known:
        raise BaselineError("no component's utilization is in every training run")
    columns = np.array(
        [[_node_s(run), *(_share(run, each) * _node_s(run) for each in known)] for run in rows]
    )
    values = _solved(rows, columns).tolist()

    def energy_j(run: Run) -> float:
        if lacking := [each for each in known if each not in run.utilization]:
            raise BaselineError(f"{run.name} has no utilization.{lacking[0]}")
        shares = (_share(run, each) for each in known)
        power = values[0] + sum(v * share for v, share in zip(values[1:], shares, strict=True))
        return float(power) * _node_s(run)

    return energy_j


def _by_time(runs: Sequence[Run]) -> Predictor:
    rows = _training(runs)
    (power,) = _solved(rows, np.array([[_node_s(run)] for run in rows])).tolist()
    return lambda run: power * _node_s(run)


def _non_linear(runs: Sequence[Run]) -> Predictor:
    rows = _resting_or_training(runs)
    node_s = np.array([_node_s(run) for run in rows])
    shares = np.array([_main_share(run) for run in rows])
    energy = np.array([run.energy_j for run in rows])

    def curve(share: Floats, exponent: float) -> Floats:
        return np.asarray(2 * share - share**exponent)

    fits = []
    for exponent in _EXPONENTS.tolist():
        columns = np.array([node_s, curve(shares, exponent) * node_s]).T
        values = _solved(rows, columns)
        fits.append((float((((columns @ values) / energy - 1) ** 2).sum()), exponent, values))
    _, best, (idle, span) = min(fits, key=lambda each: each[0])
    return lambda run: float(idle + span * curve(np.array(_main_share(run)), best)) * _node_s(run)


def _rated(runs: Sequence[Run]) -> Predictor:
    del runs  # nothing is calibrated

    def energy_j(run: Run) -> float:
        if run.rated_w is None:
            raise BaselineError(f"{run.name} has no rated_w")
        return run.rated_w * _utilization(run) * run.wall_s

    return energy_j


#: Name → baseline, in the order of the table. L1 to L4 are the four linear models.
BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "proportional": Baseline(
            title="L1 proportional to utilization", formula="P = k u", fit=_proportional
        ),
        "affine": Baseline(
            title="L2 affine in utilization [Fan]",
            formula="P = P_idle + (P_busy - P_idle) u",
            fit=_affine,
        ),
        "additive": Baseline(
            title="L3 additive by component [Mantis]", formula="P = a + Σ b_d u_d", fit=_additive
        ),
        "time": Baseline(
            title="L4 proportional to time", formula="P = P̄", fit=_by_time, knows="length"
        ),
        "non-linear": Baseline(
            title="non-linear, calibrated [Fan]",
            formula="P = P_idle + (P_busy - P_idle)(2u - u^r)",
            fit=_non_linear,
        ),
        "rated": Baseline(title="TDP x utilization", formula="P = TDP u", fit=_rated),
    }
)
