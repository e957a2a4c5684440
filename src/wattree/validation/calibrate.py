"""Fit the constants of the cost models to measured step times, and leave sources out in turn.

Every constant is fitted as a logarithm with a prior, by Gauss-Newton steps on the closed form of
`predict.estimate`; each row carries the ratio of simulated to closed-form time, remade between
rounds, so that what is fitted is the simulation. Rows that repeat one configuration count less.

The rows enter only through families and device types: no constant belongs to a row, a model or a
size. The spreads of the priors are few and were chosen by the error on left-out sources
(docs/design/0007-priors.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattree.cost import Calibration, software_family
from wattree.predict import Degrees, Setting
from wattree.predict.estimate import Screened, screened
from wattree.strategy import StrategyOptions
from wattree.validation.express import Expressed

__all__ = ["FITTED", "Fit", "FitRow", "Prior", "fit", "leave_sources_out"]

Floats = NDArray[np.float64]

#: Weight of a row whose configuration occurs n times: n**-0.35 (a scaling series is one fact).
_REPEAT_EXPONENT = 0.35
#: Standard deviation of a row's logarithmic error that the fit assumes.
_ROW_NOISE = 0.05
#: Errors beyond this many deviations pull linearly, not quadratically (Huber).
_HUBER = 4.0
_STEP = 0.02
_ROUNDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """What is known of a constant before the rows are seen.

    Attributes:
        value: Start value.
        spread: Standard deviation of its logarithm.
        source: Where the start value comes from.
    """

    value: float
    spread: float
    source: str


#: Spread of what a device reaches in matrix products: sustained clocks under a power limit and
#: libraries' kernels differ by tens of per cent from the best published product.
_DEVICE_SPREAD = 0.3
#: Spread of what a family adds to that: the libraries are the same, only gaps differ.
_FAMILY_SPREAD = 0.03
#: Spread of fused attention's rate around 0.88 of what tables of measured kernels approach at
#: long sequences (0.49 to 0.66 of peak on A100, 0.56 to 0.66 on H100, 0.51 to 0.57 on B200).
_ATTENTION_SPREAD = 0.02
#: Spread of a constant of which only the order of magnitude is known.
_UNKNOWN_SPREAD = 1.5


def _priors() -> dict[str, Prior]:
    gemm = "0.9 of the best achieved 16-bit product (published shape searches)"
    fitted8 = "0.85 of the best achieved fp8 product"
    prefill = "0.88 of measured forward attention (AI Configurator tables, 2026)"
    eager = "eager kernels, each operand moved once or twice, casts in between"
    seen = "order of magnitude; chosen with the rows in view"
    reference = "as the reference family"
    table = {
        "device.a100-sxm-80gb.matmul.bf16": (0.79, _DEVICE_SPREAD, gemm),
        "device.h100-sxm-80gb.matmul.bf16": (0.71, _DEVICE_SPREAD, gemm),
        "device.h100-sxm-96gb-500w.matmul.bf16": (
            0.60,
            _DEVICE_SPREAD,
            "0.88 of the 700 W part's clock",
        ),
        "device.b200-sxm-180gb.matmul.bf16": (0.66, _DEVICE_SPREAD, gemm),
        "device.gb200.matmul.bf16": (0.65, _DEVICE_SPREAD, gemm),
        "device.h100-sxm-80gb.matmul.fp8": (0.62, _DEVICE_SPREAD, fitted8),
        "device.h100-sxm-96gb-500w.matmul.fp8": (0.55, _DEVICE_SPREAD, fitted8),
        "device.b200-sxm-180gb.matmul.fp8": (0.64, _DEVICE_SPREAD, fitted8),
        "device.gb200.matmul.fp8": (0.61, _DEVICE_SPREAD, fitted8),
        "device.gb200.matmul.nvfp4": (0.48, _DEVICE_SPREAD, "0.8 of the fp8 share"),
        "architecture.ampere.attention": (0.43, _ATTENTION_SPREAD, prefill),
        "architecture.hopper.attention": (0.55, _ATTENTION_SPREAD, prefill),
        "device.h100-sxm-96gb-500w.attention": (
            0.47,
            _ATTENTION_SPREAD,
            "0.86 of the 700 W part's clock",
        ),
        "architecture.blackwell.attention": (0.48, _ATTENTION_SPREAD, prefill),
        "general.block_scaling_rate": (0.93, 0.08, "measured block-scaled products"),
        "general.old_attention_rate": (
            0.45,
            0.15,
            "FlashAttention 2 against 3 on H100: 35 % and 75 % of peak (Shah et al., 2024)",
        ),
        "general.overlap_compute_rate": (0.80, 0.03, "NCCL holds some 20 of 132 SMs"),
        "general.overlap_communication_rate": (
            0.91,
            0.05,
            "gamma of 0.1 for GPT on V100 (examples of the Proteus code, 2024)",
        ),
        "general.head_misalignment": (6.0, 0.5, seen),
        "general.moe_permute_factor": (1.5, 0.4, seen),
        "general.moe_exchange_factor": (1.1, 0.3, "alpha-beta, some imbalance"),
        "general.moe_host_s": (0.0045, 0.3, seen),
        "general.moe_host_graphed_s": (0.002, 0.5, seen),
        "general.moe_fused_rate": (0.35, 0.4, seen),
        "pooled.step_overhead_s": (0.02, _UNKNOWN_SPREAD, seen),
        "general.straggling_per_doubling": (0.005, _UNKNOWN_SPREAD, seen),
        "general.network_efficiency": (0.92, 0.03, "nccl-tests over InfiniBand and RoCE"),
        "pooled.launch_s": (6e-6, 0.4, "PyTorch launch on current hosts"),
        "family.megatron-deepspeed.elementwise": (1.7, 0.15, eager),
        "family.megatron-lm-2021.elementwise": (1.2, 0.15, "fused softmax, bias and dropout"),
        "family.llm-foundry.elementwise": (1.7, 0.15, eager),
        "family.torchtitan.elementwise": (1.7, 0.15, eager),
        "general.blocking_launch_s": (
            5e-5,
            _UNKNOWN_SPREAD,
            "launch, wait and return; order of magnitude",
        ),
        "family.megatron-deepspeed.math": (1.0, _FAMILY_SPREAD, reference),
        "family.megatron-lm-2021.math": (1.0, _FAMILY_SPREAD, reference),
        "family.llm-foundry.math": (0.97, _FAMILY_SPREAD, "eager, small gaps"),
        "family.torchtitan.math": (0.97, _FAMILY_SPREAD, "eager, small gaps"),
        "family.pytorch-fsdp-compiled.math": (1.0, _FAMILY_SPREAD, reference),
        "family.maxtext.math": (1.0, _FAMILY_SPREAD, reference),
        "family.megatron-te.math": (0.9, 0.1, "no overlap, no tuning stated"),
    }
    return {
        name: Prior(value=value, spread=spread, source=source)
        for name, (value, spread, source) in table.items()
    }


#: Constants that `fit` remakes, with their priors.
FITTED: Mapping[str, Prior] = _priors()


@dataclass(slots=True, kw_only=True)
class FitRow:
    """A measured row on its way through the fit.

    Attributes:
        expressed: The row as a job.
        measured_s: Measured step time. [s]
        setting: For any calibration: the job's setting under it.
        ratio: Simulated over closed-form step time at the last round's constants.
        screen: Block programs of its strategy, compiled once.
    """

    expressed: Expressed
    measured_s: float
    setting: Callable[[Calibration], Setting]
    ratio: float = 1.0
    screen: Screened | None = field(default=None, repr=False)

    def estimate_s(self, calibration: Calibration) -> float:
        """Return the estimated step time under `calibration`. [s]"""
        setting = self.setting(calibration)
        if self.screen is None:
            options = self.expressed.job.strategy
            assert isinstance(options, StrategyOptions)
            degrees = Degrees.of([options], self.expressed.job.data.global_batch)
            self.screen = screened(setting, options, degrees)
        return self.ratio * float(self.screen.estimates(setting).step_time_s[0])

    @property
    def key(self) -> tuple[object, ...]:
        """Return what tells configurations apart, whatever the release that ran them."""
        row, job = self.expressed.row, self.expressed.job
        return (
            row.source_id,
            row.model_name,
            row.accelerator,
            job.precision,
            job.data,
            job.strategy,
            tuple(sorted((k, str(v)) for k, v in job.traits.items())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Result of a fit.

    Attributes:
        calibration: With the fitted constants in place.
        spread: Posterior standard deviation of each fitted logarithm.
        jacobian: Of log step time by log constant, `(rows, constants)`.
        names: Columns of the Jacobian.
    """

    calibration: Calibration
    spread: Mapping[str, float]
    jacobian: Floats
    names: tuple[str, ...]


def fit(
    rows: Sequence[FitRow],
    start: Calibration,
    *,
    rounds: int = _ROUNDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> Fit:
    """Fit all constants of `FITTED` to `rows`.

    Args:
        rows: Measured rows.
        start: Calibration to begin from; its other constants are kept.
        rounds: Gauss-Newton steps.
        progress: Called with (stage, done, total).
    """
    names = tuple(FITTED)
    weights = row_weights(rows)
    calibration = start
    jacobian = np.zeros((len(rows), len(names)))
    for done in range(rounds):
        logs, jacobian = _linearised(rows, calibration, names)
        theta = _solve(rows, logs, jacobian, weights, calibration=calibration, names=names)
        calibration = calibration.replaced(dict(zip(names, np.exp(theta), strict=True)))
        if progress is not None:
            progress("fitting", done + 1, rounds)
    spread = _posterior(jacobian, weights, names)
    return Fit(
        calibration=calibration,
        spread=dict(zip(names, spread, strict=True)),
        jacobian=jacobian,
        names=names,
    )


def leave_sources_out(rows: Sequence[FitRow], full: Fit) -> dict[str, Calibration]:
    """Return, for each source, a calibration fitted without its rows.

    Starts from the priors' side of the full fit: two Gauss-Newton steps with the left-out rows
    removed, the second on the full fit's Jacobian (the model is close to linear in logarithms).
    """
    result = {}
    sources = sorted({row.expressed.row.source_id for row in rows})
    names = full.names
    for source in sources:
        keep = np.array([row.expressed.row.source_id != source for row in rows])
        kept = [row for row, inside in zip(rows, keep, strict=True) if inside]
        weights = row_weights(kept)
        logs = np.log([row.estimate_s(full.calibration) for row in kept])
        theta = _solve(
            kept, logs, full.jacobian[keep], weights, calibration=full.calibration, names=names
        )
        left = full.calibration.replaced(dict(zip(names, np.exp(theta), strict=True)))
        logs = np.log([row.estimate_s(left) for row in kept])
        theta = _solve(kept, logs, full.jacobian[keep], weights, calibration=left, names=names)
        result[source] = left.replaced(dict(zip(names, np.exp(theta), strict=True)))
    return result


def row_weights(rows: Sequence[FitRow]) -> Floats:
    """Return the weight of each row: configurations that repeat count less each."""
    counts = Counter(row.key for row in rows)
    return np.array([counts[row.key] ** -_REPEAT_EXPONENT for row in rows])


def _linearised(
    rows: Sequence[FitRow], calibration: Calibration, names: Sequence[str]
) -> tuple[Floats, Floats]:
    """Return log estimates and their derivatives by log constants."""
    logs = np.log([row.estimate_s(calibration) for row in rows])
    jacobian = np.zeros((len(rows), len(names)))
    for column, name in enumerate(names):
        value = calibration.constants[name].value
        moved = calibration.replaced({name: value * math.exp(_STEP)})
        for index, row in enumerate(rows):
            if _touches(name, row):
                jacobian[index, column] = (math.log(row.estimate_s(moved)) - logs[index]) / _STEP
    return logs, jacobian


def _touches(name: str, row: FitRow) -> bool:
    """Whether a constant can matter to a row: its device, its family, or all."""
    scope, rest = name.split(".", 1)
    job = row.expressed.job
    if scope == "device":
        return rest.startswith(f"{job.cluster.node.device.name}.")
    if scope == "family":
        return rest.startswith(f"{job.software}.")
    if scope == "architecture":
        return rest.startswith(f"{job.cluster.node.device.architecture}.")
    if name == "general.blocking_launch_s":
        return software_family(job.software).with_traits(job.traits).launch_blocking
    if ".moe_" in name:
        return bool(row.expressed.row.n_experts)
    return True


def _solve(
    rows: Sequence[FitRow],
    logs: Floats,
    jacobian: Floats,
    weights: Floats,
    *,
    calibration: Calibration,
    names: Sequence[str],
) -> Floats:
    """Return the constants' logarithms that minimise robust errors plus priors, linearised."""
    measured = np.log([row.measured_s for row in rows])
    theta = np.log([calibration.constants[name].value for name in names])
    prior = np.log([FITTED[name].value for name in names])
    precision = np.array([FITTED[name].spread for name in names]) ** -2.0
    target = measured - logs + jacobian @ theta
    solution = theta
    for _ in range(30):  # iteratively reweighted: Huber's loss
        residual = np.abs(target - jacobian @ solution) / _ROW_NOISE
        robust = np.where(residual > _HUBER, _HUBER / np.maximum(residual, 1e-12), 1.0)
        w = weights * robust / _ROW_NOISE**2
        normal = (jacobian * w[:, None]).T @ jacobian + np.diag(precision)
        right = (jacobian * w[:, None]).T @ target + precision * prior
        solution = np.linalg.solve(normal, right)
    # Long steps leave the region where the linearisation holds.
    return np.asarray(theta + np.clip(solution - theta, -0.7, 0.7))


def _posterior(jacobian: Floats, weights: Floats, names: Sequence[str]) -> Floats:
    precision = np.array([FITTED[name].spread for name in names]) ** -2.0
    normal = (jacobian * (weights / _ROW_NOISE**2)[:, None]).T @ jacobian + np.diag(precision)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(normal))))
