"""The study's tables as Markdown, and what they say of the claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulated import Case, Step
from trained import iso_width

__all__ = [
    "best_table",
    "factors_table",
    "grouped",
    "iterations",
    "steps_table",
    "timed_table",
    "verdict",
]

_SHAPE = ("source", "width", "depth", "ranks", "ghosts", "preset")


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def grouped(runs: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    """Return the runs that are not timed by shape, all seeds of it together."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        if not run["timed"]:
            found.setdefault(tuple(run[key] for key in _SHAPE), []).append(run)
    return found


def _steps(runs: Sequence[Mapping[str, Any]] | None) -> list[int] | None:
    """Return the steps to the first target by seed; None where a seed did not reach it."""
    if not runs or any(run["steps_to"][0] is None for run in runs):
        return None
    return [run["steps_to"][0] for run in runs]


def iterations(runs: Sequence[Mapping[str, Any]], *, source: str = "digits") -> list[float | None]:
    """Return, of all phantom stacks with ghosts, steps to the target over those of the dense one.

    Args:
        runs: As measured.
        source: Data set.

    Returns:
        A ratio of means over seeds by shape; None where a stack did not reach the target.
    """
    by_shape = grouped(runs)
    found: list[float | None] = []
    for (data, width, depth, _, ghosts, preset), own in by_shape.items():
        dense = _steps(by_shape.get((data, width, depth, 1, 0, "ddp")))
        if data == source and preset == "phantom" and ghosts and dense:
            steps = _steps(own)
            found.append(steps and statistics.fmean(steps) / statistics.fmean(dense))
    return found


def iso_iterations(
    runs: Sequence[Mapping[str, Any]], *, source: str
) -> list[tuple[int, int, int, int, float]]:
    """Return the same against dense stacks with as many parameters, where such were trained.

    Returns:
        Width, ranks, ghosts, the dense stack's width, and the ratio of steps.
    """
    by_shape = grouped(runs)
    found = []
    for (data, width, depth, ranks, ghosts, preset), own in by_shape.items():
        if data != source or preset != "phantom" or not ghosts:
            continue
        narrow = iso_width(width, ranks, ghosts)
        steps, dense = _steps(own), _steps(by_shape.get((data, narrow, depth, 1, 0, "ddp")))
        if steps and dense:
            ratio = statistics.fmean(steps) / statistics.fmean(dense)
            found.append((width, ranks, ghosts, narrow, ratio))
    return found


def steps_table(runs: Sequence[Mapping[str, Any]], targets: Mapping[str, Sequence[float]]) -> str:
    """Return the steps to the target of every stack, phantom ones against dense ones."""
    by_shape = grouped(runs)
    rows = []
    for (source, width, depth, ranks, ghosts, preset), own in by_shape.items():
        whole = by_shape.get((source, width, depth, 1, 0, "ddp"))
        steps, dense = _steps(own), _steps(whole)
        ratio = statistics.fmean(steps) / statistics.fmean(dense) if steps and dense else None
        share = own[0]["parameters"] / whole[0]["parameters"] if whole else None
        at_end = statistics.fmean(run["losses"][-1] for run in own)
        rows.append(
            (
                f"{source} ≤ {targets[source][0]:g}",
                "dense" if preset == "ddp" else f"phantom, p {ranks}, k {ghosts}",
                f"{width} x {depth}",
                f"{own[0]['parameters']:,}",
                _ratio(share),
                ", ".join(str(run["steps_to"][0] or "–") for run in own),
                _ratio(ratio),
                f"{at_end:.3f}",
            )
        )  # fmt: skip
    rows.sort(key=lambda row: row[0])
    heads = (
        "loss", "stack", "width x depth", "weights", "of dense", "steps, by seed", "to dense",
        "last loss",
    )  # fmt: skip
    return _markdown(heads, rows)


def timed_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return time, bytes and energy of a step over two ranks of this machine."""
    timed = [run for run in runs if run["timed"]]
    widest = max(run["width"] for run in timed)
    base = next(run for run in timed if run["preset"] == "tensor" and run["width"] == widest)
    rows = [
        (
            f"phantom, k {run['ghosts']}" if run["preset"] == "phantom" else run["preset"],
            str(run["width"]),
            f"{run['parameters']:,}",
            f"{run['sent_bytes']:,.0f}",
            _ratio(run["sent_bytes"] / base["sent_bytes"]),
            f"{run['collectives']:g}",
            f"{run['step_s'] * 1e3:.1f} ms",
            _ratio(run["step_s"] / base["step_s"]),
            "–" if run["energy_j"] is None else f"{run['energy_j']:.2f} J",
        )
        for run in timed
    ]
    heads = (
        "strategy", "width", "weights", "bytes sent", "to tensor", "collectives", "step",
        "to tensor", "energy, estimated",
    )  # fmt: skip
    return _markdown(heads, rows)


def factors_table(cases: Sequence[Case], epoch: int) -> str:
    """Return each case's factors: weights, traffic, time, power, energy, and what is left."""
    rows = []
    for case in cases:
        own, whole, iso = case.phantom, case.tensor, case.iso
        energy = own.energy_j / whole.energy_j
        steps = epoch / case.batch / 3.6e6  # J to kWh
        rows.append(
            (
                str(case.batch),
                f"{case.width} x {case.depth}",
                str(case.ranks),
                str(case.ghosts),
                _ratio(case.parameters),
                f"{case.traffic:.3f}",
                _ratio(own.time_s / whole.time_s),
                _ratio(own.power_w / whole.power_w),
                f"**{energy:.2f}**" if energy <= 0.5 else f"{energy:.2f}",
                f"{steps * own.energy_j:.2f} / {steps * whole.energy_j:.2f}",
                _ratio(own.energy_j / iso.energy_j),
                _ratio(case.block.energy_j / whole.energy_j),
                f"{0.5 / energy:.1f}" + ("" if whole.fits else " (dense does not fit)"),
            )
        )
    heads = (
        "batch", "width x depth", "p", "k", "weights", "traffic", "time", "power", "energy",
        "kWh an epoch", "energy to iso", "energy, k 0", "steps it may take",
    )  # fmt: skip
    return _markdown(heads, rows)


def bests(cases: Sequence[Case]) -> list[tuple[int, int, Case, Step]]:
    """Return batch, width, and the phantom case and the tensor step of least energy that fit."""
    found = []
    for batch, width in dict.fromkeys((case.batch, case.width) for case in cases):
        mine = [case for case in cases if (case.batch, case.width) == (batch, width)]
        fitting = [case for case in mine if case.phantom.fits]
        dense = [case.tensor for case in mine if case.tensor.fits]
        if fitting and dense:
            own = min(fitting, key=lambda case: case.phantom.energy_j)
            found.append((batch, width, own, min(dense, key=lambda step: step.energy_j)))
    return found


def best_table(cases: Sequence[Case]) -> str:
    """Return the number of ranks at which each method takes least energy."""
    rows = []
    for batch, width, case, whole in bests(cases):
        own = case.phantom
        rows.append(
            (
                str(batch),
                str(width),
                f"p {own.ranks}, k {case.ghosts}: {own.time_s * 1e3:.1f} ms, {own.energy_j:.0f} J",
                f"p {whole.ranks}: {whole.time_s * 1e3:.1f} ms, {whole.energy_j:.0f} J",
                whole.how,
                f"{own.ranks / whole.ranks:g}",
                _ratio(own.time_s / whole.time_s),
                _ratio(own.power_w / whole.power_w),
                _ratio(own.energy_j / whole.energy_j),
                _ratio(case.parameters),
            )
        )
    heads = (
        "batch", "width", "phantom", "tensor", "best as", "ranks", "time", "power", "energy",
        "weights",
    )  # fmt: skip
    return _markdown(heads, rows)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def verdict(
    cases: Sequence[Case], runs: Sequence[Mapping[str, Any]], *, claim: float, source: str
) -> list[str]:
    """Return in sentences where the claim holds, from the numbers.

    Args:
        cases: The simulated sweep.
        runs: As measured, for the steps to a loss.
        claim: Energy over that of tensor parallelism that is claimed.
        source: Data set whose steps count.
    """
    every = [case.phantom.energy_j / case.tensor.energy_j for case in cases]
    told = _simulated(cases, every, claim)
    ratios = iterations(runs, source=source)
    known = [each for each in ratios if each is not None]
    if not known:
        return [*told, "No phantom stack reached the target loss: nothing can be said of it."]
    least, most = min(known), max(known)
    told.append(
        f"Same loss (measured on stacks of {source}): {least:.2f} to {most:.2f} times the steps of "
        f"the dense stack of the same width, median {statistics.median(known):.2f}; "
        f"{len(ratios) - len(known)} of {len(ratios)} did not get there."
    )
    told += [
        f"  with as many parameters: phantom of width {width}, p {ranks}, k {ghosts} takes "
        f"{ratio:.2f} times the steps of dense of width {narrow}"
        for width, ranks, ghosts, narrow, ratio in iso_iterations(runs, source=source)
    ]
    surely = sum(energy * most <= claim for energy in every)
    maybe = sum(energy * least <= claim for energy in every) - surely
    geometric = math.exp(statistics.fmean(math.log(energy) for energy in every))
    told.append(
        f"If large stacks took as many times the steps, which nothing here shows: holds in "
        f"{surely} of {len(cases)} cases at the most steps, and in {maybe} more only at the fewest "
        f"(energy of a step: geometric mean {geometric:.2f})."
    )
    return told


def _simulated(cases: Sequence[Case], every: Sequence[float], claim: float) -> list[str]:
    """Return where the claim holds if as many steps are taken."""
    held = [case for case, energy in zip(cases, every, strict=True) if energy <= claim]
    told = [
        f"Same width and ranks, as many steps (simulated): at most {claim:.0%} of the energy in "
        f"{len(held)} of {len(cases)} cases; ratios {_span(every)}."
    ]
    for batch, width in dict.fromkeys((case.batch, case.width) for case in cases):
        mine = [case for case in cases if (case.batch, case.width) == (batch, width)]
        yes = sorted({case.ranks for case in mine if case in held})
        no = sorted({case.ranks for case in mine if case not in held})
        told.append(
            f"  batch {batch}, width {width}: holds at p {_listed(yes)}; not, for some k at least, "
            f"at p {_listed(no)}"
        )
    worse = [case for case, energy in zip(cases, every, strict=True) if energy > 1]
    told.append(f"In {len(worse)} of them phantom takes more energy than tensor parallelism.")
    iso = [case.phantom.energy_j / case.iso.energy_j for case in cases]
    told.append(
        f"Against tensor parallelism with as many parameters (simulated): holds in "
        f"{sum(energy <= claim for energy in iso)} of {len(cases)}; ratios {_span(iso)}."
    )
    best = [own.phantom.energy_j / whole.energy_j for _, _, own, whole in bests(cases)]
    told.append(
        f"Best ranks of each (simulated): holds in {sum(each <= claim for each in best)} of "
        f"{len(best)}; ratios {_span(best)}."
    )
    return told


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
