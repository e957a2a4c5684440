"""One space searched: screened in closed form, and its most promising strategies simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattree.arrays import Flags
from wattree.closed_form.bounds import time_bound
from wattree.predict import Setting, Shared
from wattree.search.objective import objective_of
from wattree.search.plan_result import RankedStrategy
from wattree.search.promising import Search, search
from wattree.search.screen import Constraints, ScreenedSpace, screen
from wattree.search.space import Space
from wattree.search.sure_fit import fits_surely, surely

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedSpace:
    """The result of a search of one space.

    Attributes:
        candidates: How many strategies it has, illegal ones included.
        meets: Which of the estimates meet every constraint.
        feasible: How many strategies do.
        rejected: Reason → how many were rejected for it.
    """

    screened: ScreenedSpace
    found: Search
    candidates: int
    meets: Flags
    feasible: int
    rejected: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSearch:
    """How spaces are searched: arguments of `screen` and `search`."""

    setting: Setting
    constraints: Constraints
    objectives: tuple[str, ...]
    fewest: int
    report: Progress
    enough: int | None = None
    shared: Shared = field(default_factory=Shared)

    def within(
        self, space: Space, *, than: Sequence[RankedStrategy] = (), like: Space | None = None
    ) -> SearchedSpace:
        """Return what is found in `space`, of strategies that may be better `than` those known.

        If the best that is known may not fit, also of those that surely do and may be better than
        the known ones that surely do. `like` is as of `screen`.
        """
        total = max(len(space), 1)
        screened = screen(
            self.setting,
            space,
            progress=lambda done: self.report("screening", done, total),
            shared=self.shared,
            like=like,
        )
        turned_away = screened.rejections(self.constraints, self.setting)
        feasible = ~np.logical_or.reduce(list(turned_away.values()))
        if than:
            better = self._better(screened, than)
            if not fits_surely(than[0].result):
                sure = [entry for entry in than if fits_surely(entry.result)]
                fits = screened.fits(surely(self.constraints, self.setting))
                better |= fits & self._better(screened, sure)
            feasible &= better
        cap_w = self.constraints.power_cap_w
        meets = feasible & (screened.use_of_limits(self.constraints, self.setting) <= 1.0)
        if cap_w is not None:
            meets &= screened.peak_power_w <= cap_w
        found = search(
            self.setting,
            screened,
            feasible,
            self.constraints,
            objectives=self.objectives,
            fewest=self.fewest,
            enough=self.enough,
            sure=True,
            progress=lambda done, total: self.report("simulating", done, total),
        )
        return SearchedSpace(
            screened=screened,
            found=found,
            candidates=len(space) + sum(space.rejected.values()),
            meets=meets,
            feasible=int(feasible.sum()) - sum(found.missed.values()),
            rejected=_counted(space.rejected, turned_away, found.missed),
        )

    def _better(self, screened: ScreenedSpace, than: Sequence[RankedStrategy]) -> Flags:
        """Return which strategies may be better than all that is known, by any objective.

        Of a few they are all that the error of the closed form leaves room for.
        """
        better = np.zeros(len(screened), dtype=bool)
        error = np.zeros(len(screened))
        if self.enough is not None:
            error[:] = [time_bound(options, self.setting) for options in screened.space]
        for name in self.objectives:
            least = min((objective_of(entry.result, name) for entry in than), default=np.inf)
            better |= screened.objective(name, self.setting) < least * (1.0 + error)
        return better


def in_parts(report: Progress) -> Progress:
    """Return a report whose counts go on where another part of the space begins at 1 again."""
    known: dict[str, tuple[int, int]] = {}  # stage → done before this part, and in it

    def report_on(stage: str, done: int, total: int) -> None:
        before, last = known.get(stage, (0, 0))
        if done <= last:
            before += last
        known[stage] = before, done
        report(stage, before + done, before + total)

    return report_on


def rejections(searched: Sequence[SearchedSpace]) -> dict[str, int]:
    """Return reason → candidates rejected for it in any of the spaces."""
    total: Counter[str] = Counter()
    for each in searched:
        total.update(each.rejected)
    return {reason: count for reason, count in total.items() if count}


def _counted(
    illegal: Mapping[str, int],
    screened_out: Mapping[str, Flags],
    missed: Mapping[str, int],
) -> dict[str, int]:
    """Return reason → candidates rejected for it, before, by and after screening."""
    counts = Counter(illegal)
    counts.update({reason: int(mask.sum()) for reason, mask in screened_out.items()})
    counts.update(missed)
    return {reason: count for reason, count in counts.items() if count}
