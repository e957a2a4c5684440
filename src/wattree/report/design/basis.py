"""Basis of a study: its notes, sources, axes and workloads, as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

from wattree.design import Axis, Results, Study, Workload, cost_note
from wattree.design.answers import Sweep
from wattree.job.offers import NOT_TRIED
from wattree.report.design.words import level
from wattree.units import counted

_RECONSTRUCTION = "reconstruction"


def marks(results: Results) -> list[dict[str, Any]]:
    """Return the caveats of the figures: their method, and possible misreadings."""
    found = [entry for one in results.outcomes for entry in one.workloads if entry.feasible]
    ran = sum(entry.simulated for entry in found)
    marked: list[dict[str, Any]] = []
    if is_reconstruction(results.study):
        marked.append(
            _mark("Reconstruction", "parts of this study are; see “What it rests on”.", warn=True)
        )
    if found:
        marked.append(
            _mark(
                "Predicted",
                f"{ran:,} of {len(found):,} results simulated, {len(found) - ran:,} of the "
                "closed form (marked ≈); none measured.",
            )
        )
    if cost := cost_note(results.study):
        marked.append(_mark("Cost", f"{cost}."))
    if results.points is not None and len(results) < results.points:
        left = results.points - len(results)
        why = ""
        if results.out_of_time:
            why = f"The study's {results.study.sampler.minutes:g} minutes were over: "
        text = f"{why}{left:,} points are still to be evaluated."
        marked.append(_mark("Unfinished", text, warn=True))
    marked += [_mark(NOT_TRIED.capitalize(), f"{words}.") for words in left_out(results)]
    noted = Counter(note for entry in found for note in entry.notes)
    ranked = noted.most_common()
    marked += [
        _mark("Note", f"{note} ({counted(count, 'result')})", warn=True)
        for note, count in ranked[:8]
    ]
    if len(ranked) > 8:
        marked.append(_mark("Note", f"{len(ranked) - 8} more kinds of notes are in the table."))
    return marked


def left_out(results: Results) -> list[str]:
    """Return what was not tried because software cannot run it, in words, each kind once."""
    several = len(results.study.workloads) > 1
    kinds = Counter(
        f"{entry.workload}: {'; '.join(entry.not_offered)}"
        if several
        else "; ".join(entry.not_offered)
        for one in results.outcomes
        for entry in one.workloads
        if entry.not_offered
    )
    return [f"{words} ({counted(count, 'result')})" for words, count in kinds.most_common()]


def is_reconstruction(study: Study) -> bool:
    """Whether a note of the study says that something in it is a reconstruction."""
    return any(_RECONSTRUCTION in note.lower() for note in study.notes)


def _mark(name: str, text: str, *, warn: bool = False) -> dict[str, Any]:
    return {"name": name, "text": text, "warn": warn}


def workload_rows(study: Study) -> list[tuple[str, str, str, str]]:
    """Return name, weight, target and strategy of each workload."""
    return [
        (
            one.name,
            f"{one.weight:g}",
            _target(one),
            "searched" if one.strategy == "auto" else "fixed",
        )
        for one in study.workloads
    ]


def _target(workload: Workload) -> str:
    for name in ("steps", "samples", "tokens"):
        amount = getattr(workload.target, name)
        if amount is not None:
            return f"{amount:,.0f} {name}" if amount < 1e9 else f"{amount:.4g} {name}"
    return "–"


def axis_rows(sweep: Sweep, study: Study) -> list[tuple[str, str, str]]:
    """Return label, field and values of each axis."""
    columns = {column.name: column for column in sweep.axes}
    rows = []
    for axis in study.axes:
        levels = [level(columns[axis.name], value) for value in columns[axis.name].levels]
        shown = ", ".join(levels[:12])
        more = f", … ({len(levels)} values to {levels[-1]})" if len(levels) > 12 else ""
        rows.append((axis.label, _field(axis), shown + more))
    return rows


def _field(axis: Axis) -> str:
    if axis.path:
        return f"{axis.path}{' (as factors)' if axis.scales else ''}"
    paths = dict.fromkeys(path for choice in axis.choices.values() for path in choice)
    return ", ".join(paths)


def source_rows(study: Study) -> list[tuple[str, str, str]]:
    """Return the differences from the catalog and the linked fields, with their sources."""
    changes = [(one.path, str(one.value), one.source) for one in study.changes]
    links = [
        (
            one.path or one.name,
            f"{one.name} = {one.formula.text}{f' [{one.unit}]' if one.unit else ''}",
            one.source,
        )
        for one in study.links
    ]
    return changes + links


def identity(study: Study) -> str:
    """Return the identity of the study."""
    wanted = ", ".join(study.objectives)
    digest = f", digest {study.digest[:16]}" if study.digest else ""
    return f"Study {study.name}{digest}; objectives, the first ranking: {wanted}."
