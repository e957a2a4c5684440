"""The fitting protocol: from runs of one kind of node to the constants of the stage model.

1. idle runs: power at rest. 2. the loader alone: rates of the input pipeline, energy of reading and
preparing. 3. resident data: time and energy of arithmetic and memory. 4. collectives alone: α, β
and the energy of a byte sent. 5. real runs: overlap. 6. All energy constants together, weighted by
one over energy, never below zero. docs/energy.md derives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wattree.energy.calibration import (
    CONSTANTS,
    SCALING_WORK,
    EnergyCalibration,
    ModelTraits,
    Scatter,
    StageConstant,
    Status,
    WorkLine,
)
from wattree.energy.check_reported import check_reported
from wattree.energy.fit_energy import fit_energy_constants
from wattree.energy.fit_materials import fit_materials
from wattree.energy.fit_times import FittedOverlap, fit_computing, fit_network, fit_overlap
from wattree.energy.least_squares import non_negative_fit
from wattree.energy.observed import (
    Observations,
    domain_kinds,
    observations,
    ranks_of,
    samples_on_a_rank,
)
from wattree.energy.stage_model import predicted_by_stage_j, step_times
from wattree.errors import RunError
from wattree.registry import installed_version
from wattree.trace.run import Activity, Run

#: An idle machine's own services stay below this share of a component; chosen.
_BUSY = 0.1
#: Training that takes a smaller share of its own energy above rest takes none; chosen.
_LEAST_DYNAMIC = 0.02
_COMPONENTS = ("cpu", "accelerator")
_AGAIN = "measure again while nothing else runs: wattree measure --activity idle --seconds 60"


#: Runs on several ranks before a model gets an overlap of its own.
_OWN_OVERLAP = 3


def fit_runs(runs: Sequence[Run], *, node: str | None = None) -> EnergyCalibration:
    """Return the constants that the runs determine, with intervals, and undetermined ones.

    Args:
        runs: Of all activities there are; the more are isolated, the more can be distinguished.
        node: Kind of node to fit where the runs are of several.

    Raises:
        RunError: Runs that cannot be used, that may not be mixed, or too few; each fault with its
            run and key.
    """
    seen = observations(runs, node=node)
    if not seen.runs:
        raise RunError("runs", ["found none that ended well, expected an idle run and training"])
    calibration = constants_of(seen)
    return replace(calibration, scatter=_scatter(seen, calibration), version=installed_version())


def constants_of(seen: Observations) -> EnergyCalibration:
    """Return the calibration, without the figures that need fits that leave runs out."""
    energy = fit_energy_constants(seen)
    materials, of_materials = fit_materials(seen)
    computing = fit_computing(seen)
    network, algorithms, of_network = fit_network(seen)
    first = seen.runs[0]
    calibration = EnergyCalibration(
        node=first.node,
        origin=first.origin,
        devices_per_node=_ranks_per_node(seen),
        domains=domain_kinds(first),
        constants={**energy.constants, **materials, **computing.constants, **network},
        correlated=energy.correlated,
        covariance=tuple(tuple(row) for row in energy.covariance.tolist()),
        algorithms=algorithms,
        most_nodes=max(run.nodes for run in seen.runs),
        runs=_names(seen.runs),
    )
    models = _models(seen, computing.ratios, energy.ratios)
    overlap, own, of_overlap = _overlaps(seen, replace(calibration, models=models))
    constants = {**calibration.constants, "time.overlap": overlap}
    return replace(
        calibration,
        constants={name: constants[name] for name in CONSTANTS},
        models={name: replace(traits, overlap=own.get(name)) for name, traits in models.items()},
        warnings=(
            *contradictions(seen, constants["energy.static_w"].value),
            *seen.warnings,
            *energy.warnings,
            *of_materials,
            *computing.warnings,
            *of_network,
            *of_overlap,
        ),
    )


def _ranks_per_node(seen: Observations) -> int:
    """Return the ranks of a node, from the largest training run."""
    training = seen.of(Activity.TRAINING) or seen.of(Activity.RESIDENT, Activity.COLLECTIVE)
    if all(run.ranks_per_node is None for run in training):
        return seen.runs[0].devices_per_node
    return max(ranks_of(run) // run.nodes for run in training)


def _names(runs: Sequence[Run]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for run in runs:
        found[str(run.activity)] = (*found.get(str(run.activity), ()), run.name)
    return found


def _models(
    seen: Observations, times: Mapping[str, float], energies: Mapping[str, float]
) -> dict[str, ModelTraits]:
    """Return the work of each model, from training and resident runs."""
    by_model: dict[str, list[Run]] = {}
    for run in seen.of(Activity.TRAINING, Activity.RESIDENT):
        if run.work.samples and run.model:
            by_model.setdefault(run.model, []).append(run)
    found = {}
    for model, runs in by_model.items():
        traits = _traits(runs, times.get(model, 1.0))
        found[model] = replace(traits, energy_ratio=energies.get(model, 1.0))
    return found


def _traits(runs: Sequence[Run], ratio: float) -> ModelTraits:
    training = [run for run in runs if run.activity is Activity.TRAINING]
    sizes = [samples_on_a_rank(run) for run in runs]
    gradients = [run.work.gradient_bytes for run in runs if run.work.gradient_bytes is not None]
    work = {}
    for name in SCALING_WORK:
        loaded = name not in {"flop", "memory_bytes"}
        known = [
            run for run in (training if loaded else runs) if getattr(run.work, name) is not None
        ]
        if known:
            work[name] = _line(
                [samples_on_a_rank(run) for run in known],
                [getattr(run.work, name) / ranks_of(run) for run in known],
            )
    return ModelTraits(
        work=work,
        gradient_bytes=float(np.median(gradients)) if gradients else None,
        least_samples=min(sizes),
        most_samples=max(sizes),
        time_ratio=ratio,
        prefetch=_prefetch(training),
        runs=len(training),
    )


def _prefetch(runs: Sequence[Run]) -> bool | None:
    """Return whether runs prefetch; None if they do not state it, or differ."""
    found = {run.prefetch for run in runs}
    return found.pop() if len(found) == 1 else None


def _line(samples: Sequence[float], amounts: Sequence[float]) -> WorkLine:
    """Return work as a line over the samples of a rank; through zero if all are equal."""
    if max(amounts) <= 0:
        return WorkLine(per_step=0.0, per_sample=0.0)
    columns = np.array([samples, np.ones(len(samples))]).T
    if np.ptp(samples) <= 1e-9 * max(samples):
        return WorkLine(per_step=0.0, per_sample=float(np.median(np.divide(amounts, samples))))
    weights = 1.0 / np.maximum(amounts, 1e-9 * max(amounts))
    slope, start = non_negative_fit(columns, np.array(amounts), weights).values.tolist()
    return WorkLine(per_step=start, per_sample=slope)


def _overlaps(
    seen: Observations, calibration: EnergyCalibration
) -> tuple[StageConstant, dict[str, float], list[str]]:
    """Return the overlap of all models, that of models with enough runs, and warnings."""
    values = calibration.values()
    by_model: dict[str, list[FittedOverlap]] = {}
    for run in seen.of(Activity.TRAINING):
        if ranks_of(run) == 1:
            continue
        traits = calibration.models.get(run.model)
        times = step_times(values, run, algorithms=calibration.algorithms, traits=traits)
        if times.communicating <= 0 or times.computing <= 0:
            continue
        case = FittedOverlap(
            run=run,
            computing=times.computing,
            communicating=times.communicating,
            materials=times.materials,
        )
        by_model.setdefault(run.model, []).append(case)
    constant = fit_overlap([case for cases in by_model.values() for case in cases])
    own = {}
    for model, cases in by_model.items():
        mine = fit_overlap(cases)
        if len(cases) >= _OWN_OVERLAP and mine.value is not None and mine.status is Status.FITTED:
            own[model] = mine.value
    warnings = [f"time.overlap: {constant.note}"] if constant.note and by_model else []
    return constant, own, warnings


def _scatter(seen: Observations, calibration: EnergyCalibration) -> Scatter:
    """Return the errors of predictions of training runs, for models in the fit and left out."""
    known = _errors(calibration, seen.of(Activity.TRAINING))
    unseen: list[float] = []
    models = [name for name, traits in calibration.models.items() if traits.runs]
    if len(models) > 1:
        for model in models:
            others = tuple(run for run in seen.runs if run.model != model)
            mine = [run for run in seen.of(Activity.TRAINING) if run.model == model]
            try:
                without = constants_of(Observations(runs=others, warnings=()))
            except RunError:
                continue  # the others alone tell too little
            unseen += _errors(without, mine)
    return Scatter(known=_root_mean_square(known), unseen=_root_mean_square(unseen))


def _errors(calibration: EnergyCalibration, runs: Sequence[Run]) -> list[float]:
    errors = []
    for run in runs:
        try:
            check_reported(calibration, run)
            found = sum(predicted_by_stage_j(calibration, run).values())
        except RunError:
            continue  # work that the run does not tell
        errors.append(found / run.energy_j - 1.0)
    return errors


def _root_mean_square(errors: Sequence[float]) -> float | None:
    return float(np.sqrt(np.mean(np.square(errors)))) if len(errors) > 1 else None


def contradictions(seen: Observations, static_w: float | None) -> Iterator[str]:
    """Yield reasons why a fit is meaningless: busy idle runs, training that took no energy.

    Args:
        static_w: Fitted power of a node at rest; None where it was not fitted. [W]
    """
    for run in seen.of(Activity.IDLE):
        busy = {name: run.utilization.get(name, 0.0) for name in _COMPONENTS}
        name, share = max(busy.items(), key=lambda item: item[1])
        if share > _BUSY:
            yield (
                f"{run.name} is no idle run: its {name} was {share:.0%} busy, so that power at "
                f"rest is found too high and the energy of training too low; {_AGAIN}"
            )
    training = seen.of(Activity.TRAINING, Activity.RESIDENT)
    if not training or static_w is None:
        return
    shares = [1.0 - static_w * run.nodes * run.wall_s / run.energy_j for run in training]
    if max(shares) < _LEAST_DYNAMIC:
        at_rest = max(0.0, 1.0 - max(shares))
        yield (
            f"training takes no energy by this fit: {static_w:.3g} W at rest are "
            f"{at_rest:.0%} or more of what every training run drew; these constants predict "
            f"nothing but time. {_AGAIN[0].upper()}{_AGAIN[1:]}"
        )
