"""Energy of a hypothetical run: from a calibration and the run's work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from wattree.energy.calibration import EnergyCalibration, ModelTraits
from wattree.energy.check_reported import check_reported
from wattree.energy.least_squares import quantile
from wattree.energy.observed import ranks_of
from wattree.energy.stage_model import stage_account, step_times
from wattree.errors import UnknownNameError
from wattree.trace.run import Activity, Run, RunOrigin, Work

#: How far a constant is moved to see whether it matters: to where another part may be the slower.
_MOVE = 0.5
#: Share of the whole above which a hardly known stage is reported.
_SOME = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A predicted quantity with its 95 % interval; no interval if the runs determine none."""

    value: float
    lower: float | None = None
    upper: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyForecast:
    """Predicted time and energy of a hypothetical run.

    Attributes:
        model, node, nodes, ranks, iterations, samples: The requested run; samples per step.
        step_s: Time of a step. [s]
        exposed_s: Stage → its exposed time in a step; adds up to the step time. [s]
        energy_j: Of all nodes over all iterations. [J]
        by_stage: Stage → energy; the values add up to that of `energy_j`. [J]
        static_j: Energy that depends only on time. [J]
        warnings: Quantities of such a run that the calibration does not determine.
    """

    model: str
    node: str
    nodes: int
    ranks: int
    iterations: int
    samples: float
    step_s: Figure
    exposed_s: Mapping[str, float]
    energy_j: Figure
    by_stage: Mapping[str, Figure]
    static_j: float
    warnings: tuple[str, ...] = ()


def described(
    calibration: EnergyCalibration,
    model: str,
    *,
    nodes: int,
    samples_per_rank: float | None = None,
    iterations: int = 1,
) -> Run:
    """Return a run of a model of the calibration: the work of its runs, at another size.

    Args:
        samples_per_rank: Batch of one rank; the largest of its runs if None.
        iterations: Steps.

    Raises:
        UnknownNameError: The calibration has no such model; a run of it can be given instead.
    """
    if model not in calibration.models:
        raise UnknownNameError(
            kind="model of the calibration", name=model, known=calibration.models
        )
    traits = calibration.models[model]
    samples = traits.most_samples if samples_per_rank is None else samples_per_rank
    ranks = nodes * max(1, calibration.devices_per_node)
    work = {name: line.at(samples) * ranks for name, line in traits.work.items()}
    return Run(
        name=f"{model} on {nodes}",
        origin=RunOrigin.ESTIMATED,
        activity=Activity.TRAINING,
        model=model,
        node=calibration.node,
        nodes=nodes,
        devices_per_node=calibration.devices_per_node,
        wall_s=0.0,
        iterations=iterations,
        prefetch=traits.prefetch,
        work=Work(samples=samples * ranks, gradient_bytes=traits.gradient_bytes, **work),
    )


def forecast(calibration: EnergyCalibration, run: Run) -> EnergyForecast:
    """Return the prediction for a run: time and energy follow from its work and node count.

    The interval holds the uncertainty of all constants (energy constants with their covariance,
    time constants one by one) and what is left between model and runs, for a model of the
    calibration or an unseen one.

    Args:
        run: Nodes, iterations and work. Its times and energy are not used.

    Raises:
        RunError: The run lacks work, or the calibration a constant, without which nothing can be
            said.
    """
    warnings = check_reported(calibration, run)
    traits = calibration.models.get(run.model)
    values = calibration.values()

    def account(constants: Mapping[str, float]) -> dict[str, float]:
        return stage_account(constants, run, calibration.algorithms, traits)

    found = account(values)
    unknown = _undetermined(calibration, account, found)
    half_width: Mapping[str, float | None] = dict.fromkeys([*found, "total"])
    if unknown:
        warnings.append(f"no interval: the runs leave none for {', '.join(unknown)}")
    else:
        half_width = _half_widths(calibration, account, found)
    left, word = _left_over(calibration, traits)
    warnings += [word] if word else []
    stages = ("materials", "computing", "communicating")
    by_stage = {stage: _figure(found[stage], half_width[stage], left) for stage in stages}
    warnings += _weakly_determined(by_stage)
    energy_j = sum(found[stage] for stage in stages)
    times = step_times(values, run, algorithms=calibration.algorithms, traits=traits)
    return EnergyForecast(
        model=run.model,
        node=calibration.node,
        nodes=run.nodes,
        ranks=ranks_of(run),
        iterations=run.iterations,
        samples=run.work.samples or 0.0,
        step_s=_figure(times.step_s, half_width["step"], left),
        exposed_s=times.exposed(),
        energy_j=_figure(energy_j, half_width["total"], left),
        by_stage=by_stage,
        static_j=values["energy.static_w"] * run.nodes * times.step_s * run.iterations,
        warnings=tuple(warnings),
    )


def _weakly_determined(by_stage: Mapping[str, Figure]) -> list[str]:
    """Return a sentence for each large stage whose interval includes zero."""
    whole = sum(figure.value for figure in by_stage.values())
    return [
        f"{stage}: its interval reaches zero, so the runs hardly determine its part of the energy"
        for stage, figure in by_stage.items()
        if figure.lower is not None and figure.lower <= 0 and figure.value > _SOME * whole
    ]


def _figure(value: float, half_width: float | None, left: float | None) -> Figure:
    if half_width is None:
        return Figure(value=value)
    wide = sqrt(half_width**2 + ((left or 0.0) * value) ** 2)
    return Figure(value=value, lower=max(value - wide, 0.0), upper=value + wide)


def _half_widths(
    calibration: EnergyCalibration,
    account: Callable[[Mapping[str, float]], Mapping[str, float]],
    found: Mapping[str, float],
) -> dict[str, float]:
    """Return stage, `total` and `step` → half of the interval that the constants leave."""
    values = calibration.values()
    squares = dict.fromkeys([*found, "total"], 0.0)
    for name, constant in calibration.constants.items():
        if constant.value is None or not name.startswith("time."):
            continue
        if constant.lower is None or constant.upper is None:
            continue  # it moves nothing, or `_undetermined` would name it
        ends = []
        for end in (constant.lower, constant.upper):
            moved = account({**values, name: end})
            change = {key: moved[key] - found[key] for key in found}
            change["total"] = sum(change.values()) - change["step"]
            ends.append(change)
        for key in squares:
            squares[key] += (max(abs(ends[0][key]), abs(ends[1][key]))) ** 2
    names = calibration.correlated
    covariance = np.array(calibration.covariance)
    if covariance.any():
        slopes = {key: np.zeros(len(names)) for key in squares}
        for index, name in enumerate(names):
            step = values[name] or 1e-30
            moved = account({**values, name: values[name] + step})
            for key in found:
                slopes[key][index] = (moved[key] - found[key]) / step
            slopes["total"][index] = sum(slopes[key][index] for key in found if key != "step")
        often = _quantile_of(calibration)
        for key, slope in slopes.items():
            squares[key] += often**2 * max(float(slope @ covariance @ slope), 0.0)
    return {key: sqrt(square) for key, square in squares.items()}


def _undetermined(
    calibration: EnergyCalibration,
    account: Callable[[Mapping[str, float]], Mapping[str, float]],
    found: Mapping[str, float],
) -> list[str]:
    """Return the constants without an interval that affect a run."""
    values = calibration.values()
    return [
        name
        for name, constant in calibration.constants.items()
        if constant.value is not None
        and (constant.lower is None or constant.upper is None)
        and account({**values, name: constant.value * _MOVE}) != found
    ]


def _quantile_of(calibration: EnergyCalibration) -> float:
    """Return the half-width of the energy constants' intervals in standard errors."""
    for index, name in enumerate(calibration.correlated):
        constant, variance = calibration.constants[name], calibration.covariance[index][index]
        if variance > 0 and constant.value is not None and constant.upper is not None:
            return (constant.upper - constant.value) / sqrt(variance)
    return quantile(1)


def _left_over(
    calibration: EnergyCalibration, traits: ModelTraits | None
) -> tuple[float | None, str]:
    """Return half of the relative interval due to model error, or why there is none."""
    scatter = calibration.scatter.known if traits is not None else calibration.scatter.unseen
    trained = sum(each.runs for each in calibration.models.values())
    if scatter is not None:
        count = trained if traits is not None else len(calibration.models)
        return scatter * quantile(max(count - 1, 1)), ""
    if traits is not None:
        return None, "too few training runs to estimate the error of the model"
    return (
        None,
        "runs of too few models to tell how far an unseen one is: its interval is short of it",
    )


def at_size(run: Run, nodes: int, *, iterations: int) -> Run:
    """Return a run on another number of nodes, each rank with the same work."""
    factor = nodes / run.nodes
    scaled = {
        name: None if (each := getattr(run.work, name)) is None else each * factor
        for name in ("samples", "flop", "memory_bytes", "read_bytes", "core_s", "copied_bytes")
    }
    work = Work(gradient_bytes=run.work.gradient_bytes, **scaled)
    return replace(
        run, nodes=nodes, work=work, iterations=iterations, wall_s=0.0, stages={}, meters=()
    )
