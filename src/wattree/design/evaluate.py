"""A point → what becomes of it: every workload on its cluster, under the best strategy."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattree.cost import Calibration, load_calibration
from wattree.design.assign import drafted, job_mapping, search_of
from wattree.design.draft import Capital, Draft
from wattree.design.figures import NO_PRICE, OVER_CAPITAL, failed, of_estimate, of_result, total_of
from wattree.design.money import NO_CAPITAL, pays_capital, pays_for_nodes
from wattree.design.outcome import Outcome, WorkloadOutcome
from wattree.design.points import DesignPoint
from wattree.design.schema import SearchSpec
from wattree.design.study import Study, Workload
from wattree.errors import JobError, StrategyError, WattreeError
from wattree.graph import ModelGraph
from wattree.hardware import Cluster, Description
from wattree.job import job_from_mapping
from wattree.predict import Setting, model_of, predicted, setting_of
from wattree.search import (
    Best,
    Constraints,
    Known,
    Limits,
    best_strategy,
    check_objectives,
    cluster_counts,
    misses,
)
from wattree.search.objective import LIMITS, is_known
from wattree.search.objective import OBJECTIVES as STRATEGY_OBJECTIVES
from wattree.search.offered import not_offered, within_offer
from wattree.strategy import AXES
from wattree.trace.bill import RUN_FIGURES

#: Keys of a job that decide the model graph.
_OF_MODEL = ("model", "data", "software", "traits", "compile", "precision")


@dataclass(slots=True)
class Evaluator:
    """Evaluates the points of one study, one after another, in one process.

    Attributes:
        models: Model graphs by `_model_key`; others are built when they are needed.
    """

    study: Study
    models: dict[str, ModelGraph] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=lambda: load_calibration(None))
    _hardware: dict[str, Description] = field(default_factory=dict)
    _known: dict[str, Known] = field(default_factory=dict)
    _pays_for_nodes: bool = field(init=False)
    _pays_capital: bool = field(init=False)

    def __post_init__(self) -> None:
        self._pays_capital = pays_capital(self.study)
        self._pays_for_nodes = pays_for_nodes(self.study)
        self._hardware = dict(self.study.hardware)

    def outcome(self, point: DesignPoint) -> Outcome:
        """Return what becomes of a point. Its own faults are reasons, not errors."""
        began = time.perf_counter()
        try:
            found = self._outcome(point)
        except WattreeError as error:
            found = Outcome(point=point, feasible=False, reason=_one_line(error, self.study.source))
        return replace(found, seconds=time.perf_counter() - began)

    def setting(self, workload: Workload, draft: Draft, cluster: Cluster) -> Setting:
        """Return what all strategies of a workload share on the cluster of a point."""
        mapping = job_mapping(workload, draft)
        job = job_from_mapping(mapping, self.study.source, folder=workload.folder, cluster=cluster)
        target = workload.target
        job = job.lasting(steps=target.steps, tokens=target.tokens, samples=target.samples)
        key = _model_key(workload, mapping)
        if key not in self.models:
            self.models[key] = model_of(job)
        return setting_of(job, self.calibration, model=self.models[key])

    def _outcome(self, point: DesignPoint) -> Outcome:
        draft = drafted(self.study, point.values, self._hardware)
        capital = draft.bought()
        cluster = self._priced(draft.cluster(), capital)
        capital_usd = capital.total_usd(cluster)
        most_usd = self.study.constraints.capital_usd
        reason: str | None
        if most_usd is not None and capital_usd is None:
            problem = "constraints.capital cannot be checked; set capital.device or capital.node"
            raise JobError(self.study.source, [f"{NO_PRICE}: {problem}"])
        if most_usd is not None and capital_usd is not None and capital_usd > most_usd:
            reason = f"{OVER_CAPITAL}: {capital_usd:,.0f} USD, more than {most_usd:,.0f} USD"
            totals = {"capital_usd": capital_usd}
            return Outcome(point=point, feasible=False, reason=reason, totals=totals)
        found = tuple(self._workload(workload, draft, cluster) for workload in self.study.workloads)
        totals, reason = total_of(self.study, found, cluster, capital_usd)
        return Outcome(
            point=point,
            feasible=reason is None,
            reason=reason,
            workloads=found,
            totals=totals,
        )

    def _priced(self, cluster: Cluster, capital: Capital) -> Cluster:
        """Return a cluster without prices that are not of the kind that other points pay.

        Raises:
            JobError: Its cost is asked for.
        """
        if self._pays_capital and not capital.is_cost:  # its rent is no like of theirs
            if "cost" in {_objective(self.study), *self.study.constraints.most}:
                raise JobError(self.study.source, [f"{NO_PRICE}: {NO_CAPITAL}"])
            pool = replace(cluster.pool, node=replace(cluster.node, price_usd_per_s=None))
            cluster = replace(cluster, pools=(pool,))
        if cluster.node.price_usd_per_s is not None or not self._pays_for_nodes:
            return cluster
        return replace(cluster, site=replace(cluster.site, energy_price_usd_per_j=None))

    def _workload(self, workload: Workload, draft: Draft, cluster: Cluster) -> WorkloadOutcome:
        try:
            found = self._found(workload, draft, cluster)
        except WattreeError as error:
            return failed(workload, _one_line(error, self.study.source))
        notes = (*found.notes, *draft.notes)
        if 0 < found.devices < cluster.devices:
            notes += (f"on {found.devices} of {cluster.devices} devices",)
        return replace(found, notes=notes)

    def _found(self, workload: Workload, draft: Draft, cluster: Cluster) -> WorkloadOutcome:
        setting = self.setting(workload, draft, cluster)
        asked = search_of(workload, draft)
        steps = workload.target.steps or float(setting.job.training.steps)
        constraints = _constraints(self.study, asked, workload, setting.job.cluster, steps)
        notes = ("memory capacity ignored",) if asked.memory == "ignored" else ()
        if not isinstance(setting.job.strategy, str):
            return self._fixed(workload, setting, constraints, steps, notes)
        objective = asked.objective or _objective(self.study)
        if objective == "cost" and not is_known(setting.job.cluster, objective):
            lack = f"node {cluster.node.name} has none; node.price gives one"
            return failed(workload, f"{NO_PRICE}: {lack}", notes)
        check_objectives(setting, (objective,))
        parts = [
            within_offer(limits, setting, any_software=asked.any_software)
            for limits in limits_of(asked)
        ]
        best = min(
            (
                best_strategy(
                    setting,
                    objective=objective,
                    constraints=constraints,
                    ranks=_ranks(cluster, asked),
                    limits=limits,
                    simulate=asked.simulate,
                    known=self._known_of(workload, draft),
                )
                for limits in parts
            ),
            key=lambda best: best.value(objective),
        )
        found = _outcome_of(best, workload, setting, steps, notes)
        return replace(found, not_offered=not_offered(setting, parts[0]))

    def _fixed(
        self,
        workload: Workload,
        setting: Setting,
        constraints: Constraints,
        steps: float,
        notes: tuple[str, ...],
    ) -> WorkloadOutcome:
        """Return what a workload does under the strategy that its study gives."""
        strategy = setting.job.strategy
        assert not isinstance(strategy, str)
        try:
            result = predicted(setting, strategy).result
        except StrategyError as error:
            return failed(workload, _one_line(error, self.study.source), notes)
        # As `simulate` judges it: what is left free decides which strategies are searched.
        missed = misses(result, replace(constraints, margin=0.0))
        found = of_result(workload, result, strategy, steps, notes)
        if missed is None:
            return found
        over = next((name for name, (reason, *_) in LIMITS.items() if reason == missed), None)
        least = {} if over is None else {over: getattr(found, RUN_FIGURES[over])}
        return failed(workload, missed, notes, least)

    def _known_of(self, workload: Workload, draft: Draft) -> Known:
        """Return the parts of a workload's strategies that do not depend on the cluster."""
        key = _model_key(workload, job_mapping(workload, draft))
        return self._known.setdefault(key, Known())


def _outcome_of(
    best: Best, workload: Workload, setting: Setting, steps: float, notes: tuple[str, ...]
) -> WorkloadOutcome:
    if best.reason is not None:
        least = {name: value * steps for name, value in best.least.items()}
        return failed(workload, best.reason, notes, least)
    if best.ranked is not None:
        chosen, result = best.ranked.options, best.ranked.result
        return of_result(workload, result, chosen, steps, notes)
    assert best.estimate is not None
    return of_estimate(workload, best.estimate, setting, steps, notes)


def models_of(study: Study) -> dict[str, ModelGraph]:
    """Return the model graphs of a study's workloads, where no axis changes them.

    Raises:
        WattreeError: A model cannot be built.
    """
    evaluator = Evaluator(study)
    first = {axis.name: axis.values[0] for axis in study.axes}
    return _models(evaluator, study, first)


def _models(evaluator: Evaluator, study: Study, values: Mapping[str, Any]) -> dict[str, ModelGraph]:
    try:
        draft = drafted(study, values, dict(study.hardware))
        cluster = draft.cluster()
    except WattreeError:
        return {}  # the points say why
    for workload in study.workloads:
        evaluator.setting(workload, draft, cluster)
    return evaluator.models


def limits_of(asked: SearchSpec) -> tuple[Limits, ...]:
    """Return the part of the strategy space that a study requests."""
    axes = {axis: tuple(given) for axis in AXES if (given := getattr(asked, axis)) is not None}
    named: dict[str, Any] = {
        "micro_batches": asked.micro_batch,
        "virtual_stages": asked.virtual_stages,
        "shardings": asked.sharding,
        "recomputations": asked.recompute,
        "schedules": asked.schedule,
        "contexts": asked.context,
        "placements": asked.placements,
    }
    given = {key: tuple(value) for key, value in named.items() if value is not None}
    exact = Limits(axes=axes, **given)
    counts = tuple(dict.fromkeys(asked.processes_per_device))
    several = tuple(count for count in counts if count > 1)
    # Apart, so that strategies of the model itself, and those with one process on each device,
    # are simulated however far behind they are.
    parts = [exact] if 1 in counts else []
    if asked.phantom:
        parts.append(replace(exact, phantom=True))
    if several:
        parts.append(replace(exact, processes=several))
    return tuple(parts)


def _ranks(cluster: Cluster, asked: SearchSpec) -> tuple[int, ...]:
    if not asked.fewer_devices:
        return (cluster.devices,)
    return cluster_counts(cluster)


def _objective(study: Study) -> str:
    """Return what strategies are ranked by: the first objective that is one of strategies."""
    return next((name for name in study.objectives if name in STRATEGY_OBJECTIVES), "time")


def _constraints(
    study: Study, asked: SearchSpec, workload: Workload, cluster: Cluster, steps: float
) -> Constraints:
    """Return what each step must keep to, so that the whole can."""
    most = study.constraints
    times = steps * workload.weight
    return Constraints(
        power_cap_w=None if most.power_w is None else most.power_w / cluster.site.pue,
        most={n: value / times for n, value in most.most.items() if is_known(cluster, n)},
        any_memory=asked.memory == "ignored",
        margin=asked.margin,
        steps=times,
    )


def _model_key(workload: Workload, mapping: Mapping[str, Any]) -> str:
    return json.dumps(
        [workload.name, {key: mapping.get(key) for key in _OF_MODEL}], sort_keys=True, default=str
    )


def _one_line(error: WattreeError, source: str) -> str:
    lines = [line.strip() for line in str(error).removeprefix(f"{source}: ").splitlines()]
    return "; ".join(line for line in lines if line)
