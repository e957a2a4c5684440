"""Cuts a module into blocks: at tensors that need a gradient, along its module tree."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wattree.capture.convert.nests import Nest
from wattree.capture.convert.trace import NestTrace
from wattree.graph import OperatorKind

WEIGHTY = {
    OperatorKind.MATMUL,
    OperatorKind.CONVOLUTION,
    OperatorKind.EMBEDDING,
    OperatorKind.ATTENTION,
}
_CONTAINERS = {"Sequential", "ModuleList", "ModuleDict"}
_NUMBERED = re.compile(r"\d$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NestRun:
    """Nests that become one instance of a block.

    Attributes:
        is_unit: It is a module that comes several times.
    """

    start: int
    end: int
    path: str
    is_unit: bool


def live_at_cuts(trace: NestTrace, nests: Sequence[Nest]) -> dict[int, tuple[int, ...]]:
    """Return the possible starts of blocks: place of a nest → the live tensors before it."""
    written: dict[int, int] = {}
    last: dict[int, int] = {}
    for place, nest in enumerate(nests):
        for seen in nest.reads:
            if not seen.detached:
                last[seen.tensor] = place
        for seen in nest.writes:
            written.setdefault(seen.tensor, place)
    recording = trace.recording
    ends = (recording.loss,) if recording.loss is not None else recording.outputs
    for index in ends:
        last[trace.view(index).tensor] = len(nests)
    begins: dict[int, list[int]] = {}
    for tensor, place in written.items():
        if trace.tensors[tensor].grad and tensor in last:
            begins.setdefault(place, []).append(tensor)
    live: set[int] = set()
    cuts: dict[int, tuple[int, ...]] = {}
    for place in range(len(nests)):
        live |= set(begins.get(place, ()))
        live = {tensor for tensor in live if last[tensor] > place}
        if live and place + 1 < len(nests) and not nests[place + 1].follows:
            cuts[place + 1] = tuple(sorted(live))
    return cuts


def runs_of(
    nests: Sequence[Nest], cuts: Collection[int], modules: Mapping[str, str]
) -> list[NestRun]:
    """Return the runs of nests between chosen cuts, in order."""
    tree = Tree(nests, cuts, modules)
    units = sorted(tree.units(""), key=lambda run: run.start)
    runs: list[NestRun] = []
    place = 0
    for unit in units:
        runs += pieces(nests, cuts, place, unit.start)
        runs += _repeats(nests, cuts, unit)
        place = unit.end
    runs += pieces(nests, cuts, place, len(nests))
    return runs


class Tree:
    """Modules and the nests they ran."""

    def __init__(
        self, nests: Sequence[Nest], cuts: Collection[int], modules: Mapping[str, str]
    ) -> None:
        self.modules = modules
        self.legal = {0, len(nests), *cuts}
        self.ranges: dict[str, tuple[int, int, int]] = {}
        for place, nest in enumerate(nests):
            path = nest.module
            while True:
                start, _, count = self.ranges.get(path, (place, place, 0))
                self.ranges[path] = (start, place + 1, count + 1)
                if not path:
                    break
                path = path.rpartition(".")[0]
        self.children: dict[str, list[str]] = {}
        for path in self.ranges:
            if path:
                self.children.setdefault(path.rpartition(".")[0], []).append(path)
        self._descends: dict[str, bool] = {}

    def is_whole(self, path: str) -> bool:
        """Whether a module's nests are all there is between two cuts."""
        start, end, count = self.ranges[path]
        return count == end - start and start in self.legal and end in self.legal

    def is_unit(self, path: str) -> bool:
        """Whether a module can be an instance: numbered, made of others, between cuts."""
        compound = path in self.children or any(p.startswith(f"{path}.") for p in self.modules)
        return compound and bool(_NUMBERED.search(path)) and self.is_whole(path)

    def nearest(self, path: str) -> list[str]:
        """Return the nearest units below a module."""
        found = []
        for child in self.children.get(path, ()):
            found += [child] if self.is_unit(child) else self.nearest(child)
        return found

    def is_container(self, path: str) -> bool:
        """Whether a module does nothing but hold others."""
        return self.modules.get(path, "ModuleList") in _CONTAINERS

    def descends(self, path: str) -> bool:
        """Return whether the modules below a unit make better instances than the unit."""
        if self.is_container(path):
            return bool(self.nearest(path))
        kind = self.modules[path]
        if kind not in self._descends:
            alike = [p for p, k in self.modules.items() if k == kind and p in self.ranges]
            self._descends[kind] = all(len(self.nearest(p)) > 1 for p in alike)
        return self._descends[kind]

    def units(self, path: str) -> list[NestRun]:
        """Return the instances among the modules below `path`."""
        found = []
        for child in self.nearest(path):
            if self.descends(child):
                found += self.units(child)
            else:
                start, end, _ = self.ranges[child]
                found.append(NestRun(start=start, end=end, path=child, is_unit=True))
        return found


def pieces(nests: Sequence[Nest], cuts: Collection[int], start: int, end: int) -> list[NestRun]:
    """Cut the nests between units so that each piece has one operator with a weight.

    It has several where they cannot be parted.
    """
    if start == end:
        return []
    bounds = [start, *(p for p in sorted(cuts) if start < p < end), end]
    found: list[tuple[int, int]] = []
    weight: set[OperatorKind] = set()
    for a, b in pairwise(bounds):
        own = {nest.kind for nest in nests[a:b]} & WEIGHTY
        # Tables of one embedding stay together: tokens, positions, types.
        if found and (not own or not weight or own | weight == {OperatorKind.EMBEDDING}):
            found[-1] = (found[-1][0], b)
            weight |= own
        else:
            found.append((a, b))
            weight = own
    return [NestRun(start=a, end=b, path=_piece_path(nests, a, b), is_unit=False) for a, b in found]


def _piece_path(nests: Sequence[Nest], start: int, end: int) -> str:
    """Return the module that names a piece: the one with its weight.

    It is the smallest module with all of it, if nothing else lies there: choices for a path hold
    for all below it. Otherwise it is known as (a part of) the model.
    """
    weighty = [n.module for n in nests[start:end] if n.kind in WEIGHTY] or [nests[start].module]
    path = weighty[0]
    while path and not all(_lies_in(module, path) for module in weighty):
        path = path.rpartition(".")[0]
    elsewhere = (*nests[:start], *nests[end:])
    if path and (len(set(weighty)) == 1 or not any(_lies_in(n.module, path) for n in elsewhere)):
        return path
    return "self" if any(_lies_in(nest.module, "model") for nest in nests) else "model"


def _lies_in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")


def _repeats(nests: Sequence[Nest], cuts: Collection[int], unit: NestRun) -> list[NestRun]:
    """Part a module that was run several times in a row into its runs."""
    signature = [(n.module, n.function, len(n.reads)) for n in nests[unit.start : unit.end]]
    count = len(signature)
    starts = [p - unit.start for p in sorted(cuts) if unit.start < p < unit.end]
    for period in starts:
        if count % period == 0 and signature[period:] == signature[:-period]:
            at = range(unit.start, unit.end, period)
            if all(p == unit.start or p in cuts for p in at):
                return [NestRun(start=p, end=p + period, path=unit.path, is_unit=True) for p in at]
    return [unit]
