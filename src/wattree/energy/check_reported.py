"""Checks a hypothetical run against a calibration: what is covered and what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from wattree.energy.calibration import EnergyCalibration, Status
from wattree.energy.observed import ranks_of, samples_on_a_rank, span_of, total
from wattree.errors import RunError
from wattree.trace.run import Run, Work

#: Energy constant → the work that it is multiplied with.
_NEEDS: Mapping[str, str] = {
    "energy.flop_j": "flop",
    "energy.core_w": "core_s",
    "energy.network_j_per_byte": "network_bytes",
    "energy.read_j_per_byte": "read_bytes",
    "energy.memory_j_per_byte": "memory_bytes",
    "energy.copied_j_per_byte": "copied_bytes",
}
#: Energy constant → what is used in its place where its work was not known in every run.
_STAND_INS = {"energy.core_w": "energy.sample_j", "energy.flop_j": "energy.trained_j"}
#: More than any machine has, does in a run, or takes in a step.
_MOST = {"nodes": 10**7, "iterations": 10**12, "samples": 10**15}
#: Nodes or samples beyond those of the fit, as a factor, from which a reader is warned.
_FAR = 4


def check_reported(calibration: EnergyCalibration, run: Run) -> list[str]:
    """Return the warnings about a prediction of the run.

    Raises:
        RunError: The run lacks work, or the calibration a constant, without which nothing can be
            said; every one of them.
    """
    if problems := list(_problems(calibration, run)):
        raise RunError(run.name, problems)
    return list(_warnings(calibration, run))


def _problems(calibration: EnergyCalibration, run: Run) -> Iterator[str]:
    yield from _absurd(run)
    values, ranks, span = calibration.values(), ranks_of(run), span_of(run)
    by_samples = "time.computing.s_per_sample" in values
    if by_samples and run.model not in calibration.models:
        yield (
            f"model: found '{run.model}', expected one of {', '.join(calibration.models)}: the "
            "runs of the fit do not tell FLOP, so nothing is known of other models"
        )
    if run.work.flop is None and not by_samples:
        yield "work.flop: is missing, expected the FLOP of a step"
    if not run.work.samples:
        yield "work.samples: is missing, expected the samples of a step"
    if not by_samples and not values.get("time.computing.s_per_flop"):
        yield (
            "time.computing.s_per_flop: the calibration lacks it; add runs with resident "
            "data, or training runs with labeled stages"
        )
    if ranks > 1 and run.work.gradient_bytes is None:
        yield "work.gradient_bytes: is missing, expected the bytes of one replica"
    if ranks > 1 and run.work.gradient_bytes and not values.get(f"time.network.{span}.bytes_per_s"):
        yield (
            f"time.network.{span}.bytes_per_s: the calibration does not contain it; add a sweep of "
            f"collectives {span} nodes, or training runs with labeled stages"
            + (", or say the network (--bandwidth, --latency)" if span == "between" else "")
        )


def _absurd(run: Run) -> Iterator[str]:
    """Yield implausible values, for which a predicted energy would be meaningless."""
    asked = {"nodes": run.nodes, "iterations": run.iterations, "samples": run.work.samples or 0.0}
    for name, found in asked.items():
        if found > _MOST[name]:
            yield f"{name}: found {found:.3g}, expected at most {_MOST[name]:.0e}"


def _warnings(calibration: EnergyCalibration, run: Run) -> Iterator[str]:
    works = {field.name for field in fields(Work) if total(run, field.name)}
    values = calibration.values()
    for name, work in _NEEDS.items():
        constant = calibration.constants[name]
        if work not in works or _STAND_INS.get(name) in values:
            continue
        if constant.status is Status.ABSENT:
            yield f"{name} is not known ({constant.note}): counted as nothing"
        elif constant.status is Status.INSEPARABLE:
            yield f"{name}: {constant.note}; other models may have another ratio"
    span = f"time.network.{span_of(run)}"
    if ranks_of(run) > 1 and (given := calibration.constants[f"{span}.bytes_per_s"]).runs == 0:
        yield f"{span}: {given.note}"
    if traits := calibration.models.get(run.model):
        samples = samples_on_a_rank(run)
        if not traits.least_samples / _FAR <= samples <= _FAR * traits.most_samples:
            yield (
                f"{samples:g} samples on a rank are far from the {traits.least_samples:g} to "
                f"{traits.most_samples:g} of the fit"
            )
    if run.nodes > _FAR * calibration.most_nodes:
        yield (
            f"{run.nodes} nodes are far beyond the {calibration.most_nodes} of the fit: what only "
            "grows large there (switches, stragglers, shared storage) is not in it"
        )
