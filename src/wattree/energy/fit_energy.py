"""Energy constants from runs: weighted non-negative least squares over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattree.arrays import Floats
from wattree.energy.calibration import StageConstant, Status, no_value
from wattree.energy.fit_times import constant_of
from wattree.energy.least_squares import NonNegativeFit, dependent_columns, non_negative_fit
from wattree.energy.observed import Observations, busy_s, stage_energies_j, total
from wattree.errors import RunError
from wattree.trace.run import Activity, Run


def _prepares(run: Run) -> bool:
    return run.activity in {Activity.LOADER, Activity.TRAINING}


def _trained_samples(run: Run) -> float | None:
    computes = run.activity in {Activity.RESIDENT, Activity.TRAINING}
    return total(run, "samples") if computes else 0.0


def _computing_node_s(run: Run) -> float | None:
    seconds = busy_s(run, "computing")
    return None if seconds is None else run.nodes * seconds


def _polling_node_s(run: Run) -> float | None:
    seconds = busy_s(run, "communicating")
    return None if seconds is None else run.nodes * seconds


#: Constant → what a run has of it; None if unknown. The order is that in which columns are kept
#: where they say the same: the large parts of an account first.
_COLUMNS: Mapping[str, Callable[[Run], float | None]] = {
    "energy.static_w": lambda run: run.nodes * run.wall_s,
    "energy.flop_j": lambda run: total(run, "flop"),
    "energy.trained_j": _trained_samples,
    "energy.computing_w": _computing_node_s,
    "energy.core_w": lambda run: total(run, "core_s"),
    "energy.sample_j": lambda run: total(run, "samples") if _prepares(run) else 0.0,
    "energy.network_j_per_byte": lambda run: total(run, "network_bytes"),
    "energy.read_j_per_byte": lambda run: total(run, "read_bytes"),
    "energy.memory_j_per_byte": lambda run: total(run, "memory_bytes"),
    "energy.copied_j_per_byte": lambda run: total(run, "copied_bytes"),
    "energy.polling_w": _polling_node_s,
}
#: Stage → constants of its work, of those above. Static power is of all, by exposed time.
_OF_STAGE: Mapping[str, tuple[str, ...]] = {
    "materials": (
        "energy.core_w",
        "energy.sample_j",
        "energy.read_j_per_byte",
        "energy.copied_j_per_byte",
    ),
    "computing": (
        "energy.flop_j",
        "energy.trained_j",
        "energy.computing_w",
        "energy.memory_j_per_byte",
    ),
    "communicating": ("energy.network_j_per_byte", "energy.polling_w"),
}
#: How a run's energy is split into stages is attributed, while the whole is read: its error counts
#: as so many of that of the whole. Stages below a share of their run count as if they had it. Both
#: are chosen: no runs with stages known from elsewhere are there to fit them to.
_SPLIT_ERRORS, _LEAST_SHARE = 4.0, 0.02
#: A coefficient correlated so much with another is named with it.
_CORRELATED = 0.9
#: Constants of computing, which a model's own ratio multiplies; turns in which ratios are found.
_OF_COMPUTING = _OF_STAGE["computing"]
#: Constant → the one that stands in for it where its work is not known.
_STAND_INS = {"energy.sample_j": "energy.core_w", "energy.trained_j": "energy.flop_j"}
_TURNS, _MOST_RATIO = 8, 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyConstants:
    """The energy part of a calibration.

    Attributes:
        correlated, covariance: As in `EnergyCalibration`.
        ratios: Model → energy of its computing over what the constants say.
        warnings: What could not be determined.
    """

    constants: Mapping[str, StageConstant]
    correlated: tuple[str, ...]
    covariance: Floats
    ratios: Mapping[str, float]
    warnings: tuple[str, ...]


def energy_columns(run: Run) -> dict[str, float | None]:
    """Return energy constant → the run's amount `V` of it, so that energy is `Σ e V`."""
    return {name: column(run) for name, column in _COLUMNS.items()}


def fit_energy_constants(seen: Observations) -> EnergyConstants:
    """Return the constants of `E = P N T + Σ e V`, from all runs at once.

    Each run is a row weighted by one over its energy, so that all count alike. The isolated runs
    of the protocol (idle, loader, resident, collective) are rows too: with the same residuals this
    is the refinement that has the estimates of the earlier steps, and their covariance, as priors.
    Where a run states the energy of its stages, each is a row too, of less weight. Intervals count
    runs, not rows: the stages of one run share its errors.

    Raises:
        RunError: Too few runs, or static power that no run tells apart from the rest.
    """
    if len(seen.runs) < 2:
        found = f"found {len(seen.runs)} to use, expected two or more: an idle run, and training"
        raise RunError("runs", [found])
    runs, warnings = _complete(seen.runs)
    table = [energy_columns(run) for run in runs]
    names, constants, more = _used_columns(runs, table)
    warnings += more
    rows = list(_rows(runs, table))
    design = np.array([[row.work.get(name) or 0.0 for name in names] for row in rows])
    weights = np.array([row.weight for row in rows])
    has_idle = any(run.activity is Activity.IDLE for run in runs)
    order = list(range(len(names))) if has_idle else [*range(1, len(names)), 0]
    dependent = dependent_columns(design * weights[:, None], order)
    if not has_idle:
        _check_static(names, dependent)
        warnings.append(
            "no idle run: static power is the part of all runs that follows time alone; "
            "`wattree measure --activity idle --seconds 60` would measure it"
        )
    kept = [index for index in range(len(names)) if index not in dependent]
    for index, partners in dependent.items():
        others = ", ".join(names[partner] for partner in partners)
        runs_of = sum(bool(row[names[index]]) for row in table)
        constants[names[index]] = _inseparable(others, len(partners), runs_of)
        stands = stand_for_it(len(partners))
        warnings.append(f"{names[index]} cannot be distinguished from {others}, {stands}")
    names = [names[index] for index in kept]
    solution, ratios = _fitted_by_model(rows, names, design[:, kept])
    exercised = [sum(bool(row[name]) for row in table) for name in names]
    constants |= _constants(names, solution, exercised)
    if not has_idle and constants["energy.static_w"].status is not Status.FITTED:
        raise _static_unknown("its interval reaches zero")
    if solution.freedom <= 0:
        warnings.append(
            f"{len(runs)} runs for {len(kept)} energy constants leave nothing to judge them by: "
            "no intervals; repeat runs, or vary batch and nodes"
        )
    warnings += [
        f"{name}: {each.note}" for name, each in constants.items() if each.status is Status.WEAK
    ]
    warnings += _stage_warnings(rows, len(runs))
    return EnergyConstants(
        constants=constants,
        correlated=tuple(names),
        covariance=solution.covariance,
        ratios=ratios,
        warnings=tuple(warnings),
    )


def _stage_warnings(rows: Sequence[_Row], runs: int) -> list[str]:
    """Return a warning where runs state the energy of their stages."""
    split = len({id(row.run) for row in rows if row.stage})
    if not split:
        return []
    return [
        f"energies of stages, stated by {split} of {runs} runs, count with errors "
        f"{_SPLIT_ERRORS:g} times those of whole runs, and as at least {_LEAST_SHARE:.0%} of "
        "their run: weights that were chosen, not fitted"
    ]


def _inseparable(others: str, partners: int, runs: int) -> StageConstant:
    stands = stand_for_it(partners)
    return no_value(
        f"in the same ratio to {others} in every run, {stands}", Status.INSEPARABLE, runs=runs
    )


def stand_for_it(partners: int) -> str:
    """Return what the constants do that another cannot be separated from, as text."""
    return "which stands for it" if partners == 1 else "which stand for it together"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """An energy to explain: of a run, or of one of its stages (`stage`, empty for the run)."""

    run: Run
    stage: str
    energy_j: float
    weight: float
    work: Mapping[str, float | None]


def _rows(runs: Sequence[Run], table: Sequence[Mapping[str, float | None]]) -> Iterator[_Row]:
    """Yield a row for each run, then one for each stage whose energy a run states."""
    for run, work in zip(runs, table, strict=True):
        yield _Row(run=run, stage="", energy_j=run.energy_j, weight=1 / run.energy_j, work=work)
    for run, work in zip(runs, table, strict=True):
        for stage, energy_j in stage_energies_j(run).items():
            mine = {name: work[name] for name in _OF_STAGE[stage]}
            mine["energy.static_w"] = run.nodes * run.stages[stage].exposed_s
            if not any(mine.values()):
                continue  # nothing was done in it
            error_j = _SPLIT_ERRORS * max(energy_j, _LEAST_SHARE * run.energy_j)
            yield _Row(run=run, stage=stage, energy_j=energy_j, weight=1 / error_j, work=mine)


def _fitted_by_model(
    rows: Sequence[_Row], names: Sequence[str], design: Floats
) -> tuple[NonNegativeFit, dict[str, float]]:
    """Return the fit, and the extra computing power of each model relative to the median.

    Models differ in what their FLOP are made of. Constants and ratios are found by turns: the
    constants with the ratios given, then each ratio as the median over the runs of its model.
    """
    energy = np.array([row.energy_j for row in rows])
    weights = np.array([row.weight for row in rows])
    of_stages = sum(bool(row.stage) for row in rows)
    computing = [index for index, name in enumerate(names) if name in _OF_COMPUTING]
    by_model = {
        model: [
            i
            for i, row in enumerate(rows)
            if row.run.model == model and not row.stage and _trained_samples(row.run)
        ]
        for model in sorted({row.run.model for row in rows})
    }
    by_model = {model: mine for model, mine in by_model.items() if model and mine}
    solution = non_negative_fit(design, energy, weights, spent=of_stages)
    ratios = dict.fromkeys(by_model, 1.0)
    if len(by_model) < 2 or not computing or solution.freedom < len(by_model):
        return solution, ratios
    for _ in range(_TURNS):
        above = design[:, computing] @ solution.values[computing]
        rest = design @ solution.values - above
        if not (above[[i for mine in by_model.values() for i in mine]] > 0).all():
            break
        for model, mine in by_model.items():
            found = float(np.median((energy[mine] - rest[mine]) / above[mine]))
            ratios[model] = min(max(found, 1 / _MOST_RATIO), _MOST_RATIO)
        middle = float(np.median(list(ratios.values())))
        ratios = {model: ratio / middle for model, ratio in ratios.items()}
        scale = np.array([ratios.get(row.run.model, 1.0) for row in rows])
        scaled = design.copy()
        scaled[:, computing] *= scale[:, None]
        solution = non_negative_fit(scaled, energy, weights, spent=len(by_model) - 1 + of_stages)
    return solution, ratios


def _complete(runs: Sequence[Run]) -> tuple[Sequence[Run], list[str]]:
    """Return the runs to fit energies to, and warnings about those left out.

    A run that lacks the amount of a constant cannot separate this constant's energy from the rest.
    It is left out where the others still determine all that they did with it, and are enough;
    elsewhere the constant is (`_used_columns`).
    """
    warnings = []
    for name in _COLUMNS:
        known = [run for run in runs if _COLUMNS[name](run) is not None]
        if len(known) == len(runs) or not any(_COLUMNS[name](run) for run in known):
            continue
        lacking = [run.name for run in runs if _COLUMNS[name](run) is None]
        found = _determined(known)
        are_enough = len(known) >= 2 * len(found) and found >= {name, *_determined(runs)}
        if are_enough and _models(known) == _models(runs):
            runs = known
            warnings.append(
                f"{name} is fitted without {_listed(lacking)}, of which what it needs is not known"
            )
    return runs, warnings


def _determined(runs: Sequence[Run]) -> set[str]:
    """Return the constants that runs distinguish."""
    table = [energy_columns(run) for run in runs]
    names = _used_columns(runs, table)[0]
    design = np.array([[row[name] or 0.0 for name in names] for row in table])
    weights = np.array([1 / run.energy_j for run in runs])
    dependent = dependent_columns(design * weights[:, None], range(len(names)))
    return {name for index, name in enumerate(names) if index not in dependent}


def _models(runs: Sequence[Run]) -> set[str]:
    return {run.model for run in runs if _trained_samples(run)}


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} runs ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"


def _used_columns(
    runs: Sequence[Run], table: Sequence[Mapping[str, float | None]]
) -> tuple[list[str], dict[str, StageConstant], list[str]]:
    """Return the usable columns (known in every run, some nonzero), constants without, warnings."""
    names, constants, warnings = [], {}, []
    for name in _COLUMNS:
        unknown = [run.name for run, row in zip(runs, table, strict=True) if row[name] is None]
        known = any(row[name] for row in table)
        if _known_in_all(_STAND_INS.get(name), table):
            note = f"not needed: {_STAND_INS[name]} has what it takes"
            constants[name] = no_value(note)
        elif known and not unknown:
            names.append(name)
        elif known:
            note = f"not known in {_listed(unknown)}, of {len(runs)}"
            constants[name] = no_value(note)
            warnings.append(f"{name} is not fitted: what it needs is {note}")
        else:
            constants[name] = no_value("no run states that it has any")
    return names, constants, warnings


def _known_in_all(name: str | None, table: Sequence[Mapping[str, float | None]]) -> bool:
    if name is None or any(row[name] is None for row in table):
        return False
    return any(row[name] for row in table)


def _check_static(names: Sequence[str], dependent: Mapping[int, tuple[int, ...]]) -> None:
    if 0 in dependent:
        others = ", ".join(names[partner] for partner in dependent[0])
        raise _static_unknown(f"the runs' length is in the same ratio to {others} in all of them")


def _static_unknown(why: str) -> RunError:
    return RunError(
        "runs",
        [
            "activity: found no 'idle' run, and the others do not tell static power from the rest "
            f"({why}); expected an idle run: wattree measure --activity idle --seconds 60"
        ],
    )


def _constants(
    names: Sequence[str], solution: NonNegativeFit, exercised: Sequence[int]
) -> dict[str, StageConstant]:
    fitted = {}
    for index, name in enumerate(names):
        found = constant_of(solution, index, exercised[index])
        more = ""
        if found.status is Status.BOUND:
            more = "; it may be up to its upper end"
        elif found.status is Status.WEAK and found.lower is not None:
            more = _partners(index, names, solution.covariance)
        fitted[name] = replace(found, note=found.note + more)
    return fitted


def _partners(index: int, names: Sequence[str], covariance: Floats) -> str:
    """Return the other coefficients that one trades off with, as text."""
    deviations = np.sqrt(np.diag(covariance))
    scale = deviations[index] * np.where(deviations > 0, deviations, np.inf)
    correlation = covariance[index] / scale
    others = [
        f"{names[other]} (correlation {correlation[other]:.2f})"
        for other in np.flatnonzero(correlation < -_CORRELATED).tolist()
        if other != index
    ]
    return f"; it trades with {', '.join(others)}" if others else ""
