"""Refit a calibration by runs of training: a few scales, and the error before and after.

A run tells how long steps waited for computing, communicating and materials. Three scales follow:

- *computing* stretches every time that a device computes: rates of products and streams are divided
  by it, times of launches multiplied;
- *communicating* stretches exchanges: rates of ports and adapters are divided by it, latencies
  multiplied;
- *host* is the time of a step that belongs to no operator, in seconds, which takes what computing
  on its own cannot explain where runs of several sizes are given.

Single constants keep their proportions: a run of whole steps cannot tell them apart. Nor can it
tell computing from exchanges inside layers where these take the processors' time, as on CPUs: a
prediction charges it to what is computed, a run clocks it as waiting. Both then get one scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from wattree.cost import SHIPPED_BASE, Calibration, Constant, constant_lines, load_calibration
from wattree.cost.calibration import device_names
from wattree.errors import RunError
from wattree.files import schema_line, write_atomic
from wattree.predict import predicted, run_of, setting_of
from wattree.strategy import StrategyOptions
from wattree.validation.trained import RUN_STAGES, TrainedRun, refuse_mixed

#: Constants by what a longer time means for them: rates fall, times grow.
_COMPUTING_RATES = (
    *("matmul.bf16", "matmul.fp32", "matmul.fp8", "matmul.nvfp4"),
    *("convolution.bf16", "convolution.fp32", "convolution.tf32"),
    *("attention", "library_bandwidth", "cached_bandwidth", "product_bandwidth"),
    *("update_bandwidth.sgd", "update_bandwidth.momentum", "update_bandwidth.adamw"),
)
_COMPUTING_TIMES = ("dispatch_s", "fresh_s_per_byte", "exchange_s", "exchange_s_per_byte")
_MOVING_RATES = ("bus_efficiency", "bus_reduce_efficiency")
_MOVING_TIMES = ("alpha_s", "alpha_reduce_s")
#: Rounds until scales stand still, and how still. Exposed times are no straight lines of them.
_ROUNDS, _STILL = 12, 1e-3
#: A scale beyond this says that the job is not what was run. A stage below this share of the step
#: says nothing.
_MOST, _LEAST_SHARE = 50.0, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitScale:
    """One refitted scale.

    Attributes:
        name: `computing`, `communicating` or `host`.
        factor: Of times; of `host`, seconds of a step after over before.
        what: The constants it changes.
    """

    name: str
    factor: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefitRow:
    """One figure of one run. [s]"""

    what: str
    measured_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFit:
    """A run's times of a step, measured and predicted: the step first, then its stages."""

    name: str
    rows: tuple[RefitRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refit:
    """What runs changed.

    Attributes:
        scales: What was fitted.
        runs: Each run before and after.
        error_before, error_after: Mean absolute relative error of step times.
        written: The new calibration.
        warnings: What the runs could not tell.
    """

    scales: tuple[RefitScale, ...]
    runs: tuple[RunFit, ...]
    error_before: float
    error_after: float
    written: Path
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the refit in plain types."""
        return {
            **{key: value for key, value in asdict(self).items() if key != "written"},
            "written": str(self.written),
            "warnings": list(self.warnings),
        }


def refit_from_runs(
    folders: Sequence[Path], *, out: Path, calibration: Path | None = None
) -> Refit:
    """Refit the scales of a calibration by runs of training, and write it.

    Args:
        folders: Of `wattree train`, with `run.json` and `job.yaml`.
        out: The calibration's file.
        calibration: Constants to begin with; those that ship if None.

    Raises:
        RunError: A folder holds no measured run of training, or runs of several kinds of devices.
        JobError: A job or the calibration cannot be read.
        OutputError: `out` cannot be written.
    """
    cases = [TrainedRun(folder) for folder in folders]
    refuse_mixed(cases)
    return _Fitting(cases, calibration).fitted(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Predicted times of one step. [s]"""

    step_s: float
    exposed: Mapping[str, float]
    busy: Mapping[str, float]


class _Fitting:
    def __init__(self, cases: Sequence[TrainedRun], calibration: Path | None) -> None:
        self.cases, self.first = cases, load_calibration(calibration)
        self.device = cases[0].job.cluster.pool.node.device
        self.settings = {case.folder: setting_of(case.job, self.first) for case in cases}
        self.family = self.settings[cases[0].folder].software.name
        self.overhead = f"family.{self.family}.step_overhead_s"
        self.before_s = self.first.family(self.family, "step_overhead_s")
        self.is_shared = self.first.own(self.device, "exchange_s", 0.0) > 0 and any(
            _is_split(case) for case in cases
        )

    def fitted(self, out: Path) -> Refit:
        before = [self._times(case, self.first) for case in self.cases]
        scales = {"computing": 1.0, "communicating": 1.0}
        overhead_s, after = self.before_s, before
        for _ in range(_ROUNDS):
            changed, overhead_s = self._better(scales, overhead_s, after)
            still = max(abs(changed[name] / scales[name] - 1.0) for name in scales) < _STILL
            scales = changed
            now = self._scaled(scales, overhead_s)
            after = [self._times(case, now) for case in self.cases]
            if still:
                break
        self._refuse_far(scales)
        calibration = self._scaled(scales, overhead_s)
        _write(out, calibration)
        runs = tuple(
            _rows(case, first, last)
            for case, first, last in zip(self.cases, before, after, strict=True)
        )
        return Refit(
            scales=self._scales_of(scales, overhead_s),
            runs=runs,
            error_before=_error(self.cases, before),
            error_after=_error(self.cases, after),
            written=out,
            warnings=tuple(self._warnings()),
        )

    def _times(self, case: TrainedRun, calibration: Calibration) -> _Times:
        model = self.settings[case.folder].model
        setting = setting_of(case.job, calibration, model=model)
        prediction = predicted(setting, case.strategy)
        run = run_of(case.job, prediction, steps=1, name="")
        return _Times(
            step_s=run.wall_s,
            exposed={name: run.stages[name].exposed_s for name in RUN_STAGES},
            busy={name: run.stages[name].busy_s for name in RUN_STAGES},
        )

    def _better(
        self, scales: Mapping[str, float], overhead_s: float, times: Sequence[_Times]
    ) -> tuple[dict[str, float], float]:
        """Return scales under which predicted exposed times come closer to the measured ones."""
        found = dict(scales)
        if self.is_shared:
            ratios = [
                max(case.step_s - overhead_s, 0.05 * case.step_s) / (each.step_s - overhead_s)
                for case, each in zip(self.cases, times, strict=True)
            ]
            factor = float(np.exp(np.mean(np.log(ratios))))
            return {name: scale * factor for name, scale in scales.items()}, overhead_s
        if ratio := self._moving(times):
            found["communicating"] *= ratio
        measured = np.array([case.stages_s.get("computing", 0.0) for case in self.cases])
        computing = np.array([each.exposed["computing"] - overhead_s for each in times])
        if (measured > 0).any() and (computing > 0).all():
            factor, overhead_s = _line(computing, measured, overhead_s)
            found["computing"] *= factor
        return found, overhead_s

    def _moving(self, times: Sequence[_Times]) -> float | None:
        """Return by how much exchanges take longer; what hides behind computing stays hidden."""
        ratios = []
        for case, each in zip(self.cases, times, strict=True):
            measured = case.stages_s.get("communicating", 0.0)
            exposed, busy = each.exposed["communicating"], each.busy["communicating"]
            if measured > _LEAST_SHARE * case.step_s and busy > 0:
                hidden = max(busy - exposed, 0.0)
                ratios.append((measured + hidden) / (exposed + hidden))
        return float(np.exp(np.mean(np.log(ratios)))) if ratios else None

    def _scaled(self, scales: Mapping[str, float], overhead_s: float) -> Calibration:
        computing, moving = scales["computing"], scales["communicating"]
        found: dict[str, Constant] = {}
        for items, factor in (
            (_COMPUTING_RATES, 1.0 / computing),
            (_COMPUTING_TIMES, computing),
            (_MOVING_RATES, 1.0 / moving),
            (_MOVING_TIMES, moving),
        ):
            for item in items:
                names = device_names(self.device, item)
                held = next((name for name in names if name in self.first.constants), None)
                if held is not None:  # those of its die and of all are scaled for its board
                    own = self.first.device(self.device, item)
                    found[names[0]] = self._changed(held, factor, own)
        found["general.memory_efficiency"] = self._changed(
            "general.memory_efficiency", 1.0 / computing
        )
        found["general.network_efficiency"] = self._changed(
            "general.network_efficiency", 1.0 / moving
        )
        found[self.overhead] = Constant(
            value=overhead_s, evidence="fitted", source=self._source("step overhead")
        )
        return replace(self.first, constants={**self.first.constants, **found})

    def _changed(self, name: str, factor: float, value: float | None = None) -> Constant:
        old = self.first.constants[name]
        source = old.source.partition("; refitted by ")[0]
        return replace(
            old,
            value=(old.value if value is None else value) * factor,
            evidence="fitted",
            source=f"{source}; {self._source(f'times {factor:.4g}')}",
        )

    def _source(self, what: str) -> str:
        count = len(self.cases)
        return f"refitted by {count} run{'s' if count > 1 else ''} of wattree train: {what}"

    def _scales_of(self, scales: Mapping[str, float], overhead_s: float) -> tuple[RefitScale, ...]:
        name = self.device.name
        return (
            RefitScale(
                name="computing",
                factor=scales["computing"],
                what=f"products, streams and launches of {name}",
            ),
            RefitScale(
                name="communicating",
                factor=scales["communicating"],
                what=f"ports and latencies of {name}, and the network's efficiency",
            ),
            RefitScale(
                name="host",
                factor=overhead_s / self.before_s if self.before_s else 1.0,
                what=f"step overhead of {self.family}",
            ),
        )

    def _refuse_far(self, scales: Mapping[str, float]) -> None:
        far = [name for name, factor in scales.items() if not 1 / _MOST < factor < _MOST]
        if far:
            raise RunError(
                str(self.cases[0].folder),
                [
                    f"{name}: {scales[name]:.3g} times as long as predicted; the job's cluster is "
                    "not the machine of the run, or its calibration is of another; name both"
                    for name in far
                ],
            )

    def _warnings(self) -> list[str]:
        notes = []
        if self.is_shared:
            notes.append(
                "exchanges inside layers take processors' time, which predictions charge to "
                "computing and runs clock as communicating: both are stretched alike, by the step"
            )
        if all(not case.stages_s.get("communicating") for case in self.cases):
            notes.append("no run communicates: the scale of communicating stays as it was")
        if len({round(case.step_s, 9) for case in self.cases}) < 2:
            notes.append("runs of one size: the step overhead stays as it was")
        return notes


def _is_split(case: TrainedRun) -> bool:
    strategy = case.strategy
    return isinstance(strategy, StrategyOptions) and strategy.tp > 1


def _line(
    computing: np.ndarray[Any, np.dtype[np.float64]],
    measured: np.ndarray[Any, np.dtype[np.float64]],
    overhead_s: float,
) -> tuple[float, float]:
    """Return factor and overhead of `measured = factor computing + overhead`, relative errors.

    Runs of like size cannot tell one from the other: the overhead then stays as it was.
    """
    if len(computing) >= 2 and computing.max() > 2.0 * computing.min():
        rows = np.stack([computing / measured, 1.0 / measured], axis=1)
        (factor, found), *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
        if factor > 0 and found >= 0:
            return float(factor), float(found)
    left = np.maximum(measured - overhead_s, 0.05 * measured)
    return float(np.exp(np.mean(np.log(left / computing)))), overhead_s


def _rows(case: TrainedRun, before: _Times, after: _Times) -> RunFit:
    rows = [
        RefitRow(what="step", measured_s=case.step_s, before_s=before.step_s, after_s=after.step_s)
    ]
    rows += [
        RefitRow(
            what=name,
            measured_s=case.stages_s[name],
            before_s=before.exposed[name],
            after_s=after.exposed[name],
        )
        for name in RUN_STAGES
        if name in case.stages_s
    ]
    return RunFit(name=case.run.name, rows=tuple(rows))


def _error(cases: Sequence[TrainedRun], times: Sequence[_Times]) -> float:
    misses = [abs(each.step_s / case.step_s - 1.0) for case, each in zip(cases, times, strict=True)]
    return float(np.mean(misses))


def _write(out: Path, calibration: Calibration) -> None:
    shipped = load_calibration().constants
    own = {
        name: constant
        for name, constant in calibration.constants.items()
        if shipped.get(name) != constant
    }
    head = [
        schema_line("calibration"),
        "# Constants refitted by runs of `wattree train` (wattree profile --from-run).",
        f"base: {SHIPPED_BASE}",
        "",
    ]
    write_atomic(out, "\n".join([*head, *constant_lines(own)]) + "\n")
