"""Comparison table of energy models on any runs: the stage model and every baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wattree.energy.baselines import BASELINES
from wattree.energy.calibration import EnergyCalibration
from wattree.energy.check_reported import check_reported
from wattree.energy.fit import constants_of, contradictions
from wattree.energy.observed import SAME_NODE, Observations, checked, observations
from wattree.energy.scores import Behind, GroupComparison, MethodScores, Score, score
from wattree.energy.selection import selector
from wattree.energy.series import FORECASTERS, Policy, forecast_series
from wattree.energy.stage_model import energy_of_run, predicted_by_stage_j
from wattree.errors import BaselineError, MissingExtraError, RunError
from wattree.trace.plain import as_plain
from wattree.trace.run import Activity, Run

#: Runs → what predicts one: stage → energy, or the whole under the empty name. [J]
_Predictor = Callable[[Run], Mapping[str, float]]
_Fit = Callable[[Sequence[Run]], _Predictor]

#: A stage that has less of a run's energy, and is said to, is not scored; one that is said to have
#: more than it has is, as if it had so much.
_LEAST_SHARE = 0.01
#: Activities of which at least one run is needed to say anything of training.
_COMPUTES = (Activity.TRAINING, Activity.RESIDENT)
_TIMES = "length, exposed stages"
_NOTHING = "work, nodes"
#: Kind of the meter that makes energy of processor time.
_ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyComparison:
    """Errors of energy models on runs, by kind of node.

    Attributes:
        groups: A comparison for each kind of node and origin.
        fit_on: Which runs they were fitted on, in words.
        series: How power series were forecast, in words.
    """

    groups: tuple[GroupComparison, ...]
    fit_on: str
    series: str

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and lists, ready for JSON."""
        plain: dict[str, Any] = as_plain(self)
        return plain


def compare_runs(
    runs: Iterable[Run], *, fit_on: str | None = None, policy: Policy | None = None
) -> EnergyComparison:
    """Fit every energy model on some runs and score it on the training runs among the others.

    Args:
        runs: Of any kinds of node and origins: each kind is compared by itself.
        fit_on: Which runs to fit on, such as `nodes<=8`; every training run is predicted from all
            others if None.
        policy: How power series are forecast.

    Raises:
        RunError: Runs that cannot be used, or nothing left to score.
    """
    kinds = _kinds(checked(runs))
    policy = policy or Policy()
    groups: list[GroupComparison] = []
    refused: list[str] = []
    for (node, origin), found in sorted(kinds.items()):
        try:
            groups.append(_group(node, origin, observations(found), fit_on, policy))
        except RunError as error:
            where = f"runs of node '{node}' ({origin})"
            refused += [f"{where}: {problem}" for problem in error.problems]
    if not groups:
        raise RunError("runs", [*refused, SAME_NODE] if len(kinds) > 1 else refused)
    if refused:
        left_out = [f"left out: {line}; {SAME_NODE}" for line in refused]
        groups[0] = replace(groups[0], warnings=(*left_out, *groups[0].warnings))
    return EnergyComparison(
        groups=tuple(groups),
        fit_on=fit_on or "all runs but the one that is predicted",
        series=policy.words(),
    )


def _kinds(runs: Sequence[Run]) -> dict[tuple[str, str], list[Run]]:
    """Return runs by node and origin; failed runs are listed with others of their node.

    Raises:
        RunError: All of them failed.
    """
    kinds: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.exit_code == 0:
            kinds.setdefault((run.node, str(run.origin)), []).append(run)
    if not kinds:
        raise RunError("runs", ["found none that ended well, expected training and an idle run"])
    for run in runs:
        if run.exit_code != 0:
            own = (run.node, str(run.origin))
            kinds[min(kinds, key=lambda kind: (kind != own, kind[0] != own[0]))].append(run)
    return kinds


def _group(
    node: str, origin: str, seen: Observations, fit_on: str | None, policy: Policy
) -> GroupComparison:
    splits = _splits(seen.runs, fit_on)
    if not splits:
        scope = f"'{fit_on}' selects every training run" if fit_on else "no training run"
        raise RunError("runs", [f"{scope}: nothing is left to score"])
    if not any(run.activity in _COMPUTES for fitted, _ in splits for run in fitted):
        scope = (
            f"'{fit_on}' selects none to fit on, expected runs that compute (training, resident)"
        )
        alone = (
            "found one training run, which would be predicted from runs that compute nothing; "
            "expected two or more, of other models or batches"
        )
        raise RunError("runs", [scope if fit_on else alone])
    scored = [run for _, runs in splits for run in runs]
    methods, tables = [], {}
    for method, (title, knows, fit) in _methods().items():
        errors, stage_errors, reason = _errors(fit, splits)
        tables[method] = errors
        methods.append(
            MethodScores(
                method=method,
                title=title,
                knows=knows,
                total=score([error for _, error in errors]),
                by_model=_by(errors, lambda run: run.model),
                by_nodes=_by(errors, lambda run: run.nodes),
                by_stage=_scores(stage_errors),
                left_out=_left_out(fit, splits, seen.runs),
                reason=reason,
            )
        )
    for method, (scores, errors) in _of_series(scored, policy).items():
        methods.append(scores)
        tables[method] = errors
    behind = _behind(tables)
    return GroupComparison(
        node=node,
        origin=origin,
        fitted=max(len(fitted) for fitted, _ in splits),
        scored=len(scored),
        methods=tuple(methods),
        cells=len({(run.model, run.nodes) for run in scored}),
        behind=behind,
        warnings=(*_busy(seen, fit_on), *seen.warnings, *_of_estimates(scored), *_warnings(splits)),
    )


def _busy(seen: Observations, fit_on: str | None) -> tuple[str, ...]:
    """Return idle runs that were busy; with a single fit for all, the fit reports them."""
    return () if fit_on else tuple(contradictions(seen, None))


def _of_estimates(runs: Sequence[Run]) -> list[str]:
    """Return a warning if energies are estimated from utilization, an input of some models."""
    if not any(reading.meter == _ESTIMATE for run in runs for reading in run.counted):
        return []
    return [
        "their energy was estimated from processor time: models that use utilization find "
        "the formula of the estimate again, and their errors do not describe machines"
    ]


def _splits(
    runs: Sequence[Run], fit_on: str | None
) -> list[tuple[tuple[Run, ...], tuple[Run, ...]]]:
    """Return pairs of the runs to fit on and the training runs to score."""
    if fit_on is None:
        return [
            ((*runs[:index], *runs[index + 1 :]), (run,))
            for index, run in enumerate(runs)
            if run.activity is Activity.TRAINING
        ]
    selected = selector(fit_on)
    fitted = tuple(run for run in runs if selected(run))
    scored = tuple(run for run in runs if run.activity is Activity.TRAINING and not selected(run))
    return [(fitted, scored)] if scored else []


def _stage_model(runs: Sequence[Run]) -> EnergyCalibration:
    return constants_of(Observations(runs=tuple(runs), warnings=()))


def _predicted(runs: Sequence[Run]) -> _Predictor:
    calibration = _stage_model(runs)

    def by_stage_j(run: Run) -> dict[str, float]:
        check_reported(calibration, run)
        return predicted_by_stage_j(calibration, run)

    return by_stage_j


def _timed(runs: Sequence[Run]) -> _Predictor:
    calibration = _stage_model(runs)
    return lambda run: energy_of_run(calibration, run)


def _baseline(name: str) -> _Fit:
    def fitted(runs: Sequence[Run]) -> _Predictor:
        energy_j = BASELINES[name].fit(runs)
        return lambda run: {"": energy_j(run)}

    return fitted


def _methods() -> dict[str, tuple[str, str, _Fit]]:
    """Return name → title, inputs from the scored runs, and the fitting method."""
    methods: dict[str, tuple[str, str, _Fit]] = {
        "stages": ("MC² stages, measured times", _TIMES, _timed),
        "stages-predicted": ("MC² stages, times predicted", _NOTHING, _predicted),
    }
    for name, baseline in BASELINES.items():
        methods[name] = (baseline.title, baseline.knows, _baseline(name))
    return methods


Errors = list[tuple[Run, float]]


def _errors(
    fit: _Fit, splits: Sequence[tuple[Sequence[Run], Sequence[Run]]]
) -> tuple[Errors, dict[str, list[float]], str]:
    """Return relative errors of energy by run and by stage, and why some or all are missing."""
    errors: Errors = []
    by_stage: dict[str, list[float]] = {}
    reason = ""
    for fitted, scored in splits:
        try:
            predict = fit(fitted)
        except (BaselineError, RunError) as refused:
            reason = _one_line(refused)
            continue
        for run in scored:
            try:
                found = predict(run)
            except (BaselineError, RunError) as refused:
                reason = _one_line(refused)
                continue
            errors.append((run, sum(found.values()) / run.energy_j - 1.0))
            for stage, use in run.stages.items():
                true_j = use.energy_j
                least_j = _LEAST_SHARE * run.energy_j
                if true_j is None or stage not in found:
                    continue
                if max(true_j, found[stage]) >= least_j:  # small in truth and in the model: no word
                    error = (found[stage] - true_j) / max(true_j, least_j)
                    by_stage.setdefault(stage, []).append(error)
    return errors, by_stage, reason


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _by(errors: Errors, key: Callable[[Run], object]) -> dict[str, Score]:
    groups: dict[Any, list[float]] = {}
    for run, error in errors:
        groups.setdefault(key(run), []).append(error)
    return _scores({str(name): groups[name] for name in sorted(groups)})


def _scores(errors: Mapping[str, list[float]]) -> dict[str, Score]:
    return {name: found for name, each in errors.items() if (found := score(each)) is not None}


def _left_out(
    fit: _Fit,
    splits: Sequence[tuple[Sequence[Run], Sequence[Run]]],
    runs: Sequence[Run],
) -> dict[str, Score]:
    """Return model → score with its runs left out of the fit; empty if there is only one model."""
    models = sorted({run.model for _, scored in splits for run in scored})
    all_models = {run.model for run in runs if run.activity is Activity.TRAINING}
    if len(all_models) < 2:
        return {}
    found = {}
    for model in models:
        scored = [run for _, each in splits for run in each if run.model == model]
        # Of several splits each leaves one run out; without the model they are one.
        fitted = splits[0][0] if len(splits) == 1 else runs
        others = [run for run in fitted if run.model != model]
        errors, _, _ = _errors(fit, [(others, scored)])
        found[model] = [error for _, error in errors]
    return _scores(found)


def _of_series(runs: Sequence[Run], policy: Policy) -> dict[str, tuple[MethodScores, Errors]]:
    """Return forecasts of power series, scored on the part of each run that was left out."""
    found = {}
    titles = {"ar": "AR(p), p by AIC", "ses": "SES", "arima": "ARIMA(p,d,q) by AIC"}
    for method in FORECASTERS:
        errors: Errors = []
        reason = ""
        for run in runs:
            series = next((each for each in run.power if each.domain == "total"), None)
            series = series or (run.power[0] if len(run.power) == 1 else None)
            if series is None:
                continue
            try:
                forecast = forecast_series(series, method, policy=policy, where=run.name)
            except (MissingExtraError, RunError) as refused:
                reason = _one_line(refused)
                continue
            errors.append((run, forecast.error))
        scores = MethodScores(
            method=method,
            title=titles[method],
            knows="their own beginning, error of the rest",
            total=score([error for _, error in errors]),
            by_model=_by(errors, lambda run: run.model),
            by_nodes=_by(errors, lambda run: run.nodes),
            reason=reason if errors or reason else "no run has a power series",
        )
        found[method] = (scores, errors)
    return found


def _behind(tables: Mapping[str, Errors]) -> tuple[Behind, ...]:
    """Return where another model was as good as the stage model with measured times, or better."""
    means = {method: _cell_means(errors) for method, errors in tables.items()}
    found = []
    for cell, ours in sorted(means["stages"].items()):
        for method, cells in means.items():
            if method.startswith("stages") or cell not in cells or cells[cell] > ours:
                continue
            model, nodes = cell
            found.append(
                Behind(
                    model=model,
                    nodes=nodes,
                    method=method,
                    error=cells[cell],
                    stage_model_error=ours,
                )
            )
    return tuple(found)


def _cell_means(errors: Errors) -> dict[tuple[str, int], float]:
    cells: dict[tuple[str, int], list[float]] = {}
    for run, error in errors:
        cells.setdefault((run.model, run.nodes), []).append(abs(error))
    return {cell: float(np.mean(each)) for cell, each in cells.items()}


def _warnings(splits: Sequence[tuple[Sequence[Run], Sequence[Run]]]) -> tuple[str, ...]:
    if len(splits) > 1:
        return ()  # of each of many fits; `wattree energy fit` tells those of all runs
    try:
        return _stage_model(splits[0][0]).warnings
    except RunError as refused:
        return tuple(refused.problems)
