"""Why points of a study are not feasible, which one is nearest, and what would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from wattree.design import Outcome, Results
from wattree.design.answers import sweep_of
from wattree.design.figures import OVER_CAPITAL, OVER_SITE_POWER
from wattree.design.study import OBJECTIVE_TOTALS, Study
from wattree.report.design.words import amount, at_point, point_name
from wattree.search.objective import LIMITS
from wattree.search.screen import OUT_OF_MEMORY, OVER_POWER

_CLUSTER = (("larger", "cluster.nodes"), ("other", "cluster.node"))
_POWER_LIMIT = (("lower", "cluster.power_limit"),)
_LESS_POWER: Final = (
    "a higher constraints.power{need}, {axes} (of each device), or fewer devices (cluster.nodes; "
    "search.fewer_devices: true)",
    _POWER_LIMIT,
)
#: Kind of reason → what to change where nothing is feasible, and the paths of `axes` in it, each
#: with which values more of it would be; `need` is what the nearest point needs.
_REMEDIES: Final[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]] = {
    OUT_OF_MEMORY: (
        "more nodes (axis cluster.nodes), devices with more memory (cluster.node, device.memory), "
        "a smaller search.margin, or fewer keys under search",
        (),
    ),
    OVER_POWER: _LESS_POWER,
    OVER_SITE_POWER: _LESS_POWER,
    OVER_CAPITAL: (
        "a larger constraints.capital{need}, or {axes}",
        (("smaller", "cluster.nodes"), ("other", "cluster.node")),
    ),
    LIMITS["time"][0]: ("a later constraints.deadline{need}, or {axes}", _CLUSTER),
    LIMITS["cost"][0]: (
        "a larger constraints.budget{need}, or {axes}",
        (("other", "cluster.nodes"), ("other", "cluster.node")),
    ),
    LIMITS["energy"][0]: ("a higher constraints.energy{need}, or {axes}", _POWER_LIMIT),
    LIMITS["carbon"][0]: (
        "a higher constraints.carbon{need}, or {axes}",
        (("other", "cluster.site"),),
    ),
}
#: Kind of reason → total of a point that is over a limit.
_TOTALS: Final = {
    OVER_SITE_POWER: "power_w",
    OVER_CAPITAL: "capital_usd",
    **{over: OBJECTIVE_TOTALS[name] for name, (over, *_) in LIMITS.items()},
}


def unfit_lines(results: Results) -> list[str]:
    """Return why points are not feasible, each reason's kind once: with the nearest or one point.

    The nearest has the least of what is over a limit. Where no point is feasible, a line says
    what would help.
    """
    kinds: dict[str, list[int]] = {}
    for index, outcome in enumerate(results.outcomes):
        if not outcome.feasible:
            kinds.setdefault(_kind(outcome), []).append(index)
    lines = []
    for kind, points in sorted(kinds.items(), key=lambda item: -len(item[1])):
        nearest = _nearest(results, kind, points)
        one = results.outcomes[points[0] if nearest is None else nearest]
        example = "" if one.reason == kind else f"; for one: {one.reason}"
        if nearest is not None and len(points) > 1:
            where = at_point(sweep_of(results), nearest)
            why = str(one.reason).removeprefix(f"{kind}: ")
            example = f"; nearest, {point_name(nearest)} ({where}): {why}"
        lines.append(f"{len(points):,} x {kind}{example}")
        if kind in _REMEDIES and not results.feasible.any():
            lines.append(f"  what would help: {_remedy(results, kind, nearest)}")
    return lines


def _kind(outcome: Outcome) -> str:
    refused = next((e.reason for e in outcome.workloads if not e.feasible), None)
    return str(refused or outcome.reason).partition(":")[0]


def _nearest(results: Results, kind: str, points: Sequence[int]) -> int | None:
    """Return the point with the least of what is over the limit; None where none states it."""
    name = _TOTALS.get(kind, "")
    known = [point for point in points if name in results.outcomes[point].totals]
    return min(known, key=lambda point: results.outcomes[point].totals[name], default=None)


def _remedy(results: Results, kind: str, nearest: int | None) -> str:
    words, paths = _REMEDIES[kind]
    need = ""
    if nearest is not None:
        name = _TOTALS[kind]
        need = f" ({amount(name, results.outcomes[nearest].totals[name])} at least)"
    return words.format(need=need, axes=_axes(results.study, paths))


def _axes(study: Study, paths: Sequence[tuple[str, str]]) -> str:
    """Return more values of the axes that set some paths, and axes that are not there."""
    there, new = [], []
    for which, path in paths:
        names = [
            axis.name
            for axis in study.axes
            if path == axis.path or any(path in fields for fields in axis.choices.values())
        ]
        there += [f"{which} values of axis {name}" for name in names]
        new += [] if names else [path]
    return " or ".join([*there, *([f"an axis {' or '.join(new)}"] if new else [])])
