"""Layers over ranks against the dense layer, in float64, on real processes over gloo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.frame import Figure, Options, Section
from tests.distributed.ranks import run_ranks

#: Groups of the first ranks of eight. [ranks]
_SIZES = (1, 2, 3, 4, 8)
#: Largest relative error of any tensor that the issue of this part allows.
_TOLERANCE = 1e-12
#: Rounding of a sum in float64, relative to the largest value of a tensor.
_ROUNDING = 1e-14


def section(options: Options) -> Section:
    """Return the worst relative error by ranks and contestant."""
    del options  # reads nothing
    cases = "tests/runtime/cases.py:exactness"
    every = run_ranks(8, cases, {"sizes": _SIZES}, limit_s=600)
    uses = run_ranks(2, "tests/runtime/uses.py:dense_and_checked", limit_s=600)
    figures = []
    for size in _SIZES:
        found = [by_size[str(size)] for by_size in every if str(size) in by_size]
        for kind in ("phantom", "low rank", "rows", "column", "row"):
            errors = list(_errors(found, kind))
            figures.append(_figure(f"{kind}, p = {size}: {len(errors)} tensors", max(errors)))
    identity = max(each["any dense"] for each in uses)
    figures.append(
        _figure("k = m, identity compressors: any dense layer, p = 2", identity, _ROUNDING)
    )
    checked = all(all(each["checked"].values()) for each in uses)
    figures.append(
        Figure(
            "gradcheck across 2 ranks, 7 layers",
            "passes",
            "passes" if checked else "fails",
            checked,
        )
    )
    notes = (
        "Worst over forward, every gradient and the exported dense layer; k in {0, 1, m/4, m}, "
        "both variants, widths that divide and that do not, overlap and re-gathering on and off.",
    )
    return Section(title="Exactness, float64", figures=tuple(figures), notes=notes)


def _errors(found: Iterable[Mapping[str, Mapping[str, Any]]], kind: str) -> Iterable[float]:
    for cases in found:
        for case, tensors in cases.items():
            contestant = case.split(", ", 1)[1]
            if contestant.startswith((f"{kind} ", f"{kind},")) and (
                kind != "row" or contestant.startswith("row,")
            ):
                yield from tensors.values()


def _figure(measure: str, error: float, tolerance: float = _TOLERANCE) -> Figure:
    return Figure(measure, f"<= {tolerance:.0e}", f"{error:.1e}", error <= tolerance)
