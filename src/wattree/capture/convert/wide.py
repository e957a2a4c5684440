"""Modules that repeat where more than one tensor is live: decoders, skips, dense connections.

Between cuts at one tensor there may be a long way: every layer of a decoder reads the encoder's
end, and the upward half of a U-Net reads tensors of the downward half. In such models, modules that
occur several times are instances of blocks too; other live tensors are carried past them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wattree.capture.convert.blocks import WEIGHTY, NestRun, Tree, pieces
from wattree.capture.convert.nests import Canonical, Nest
from wattree.capture.convert.trace import NestTrace

#: Fewer tensors than this are live in a block with a shortcut, whose parts make no blocks.
_DENSE = 3
#: Places in lists, which may be nested, and numbers at the end of a name.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|\d+$")


def wide_cuts(
    trace: NestTrace, nests: Sequence[Nest], live: Mapping[int, tuple[int, ...]]
) -> frozenset[int]:
    """Return the places at which several tensors can pass from one block to the next.

    Not where one of them is what the model returns, or a part of another, nor inside a region that
    is recomputed as a whole. Parts of one tensor can where no one reads all of it any more.
    """
    recording = trace.recording
    ends = (recording.loss,) if recording.loss is not None else recording.outputs
    returned = {trace.view(index).tensor for index in ends}
    found = set()
    for place, tensors in live.items():
        seen = [trace.tensors[tensor] for tensor in tensors]
        is_parted = nests[place].region is None or nests[place].region != nests[place - 1].region
        if len(tensors) > 1 and is_parted and returned.isdisjoint(tensors) and _is_apart(seen):
            found.add(place)
    return frozenset(found)


def _is_apart(tensors: Sequence[Canonical]) -> bool:
    """Return whether no live tensor is another one, or a part of it, in another version."""
    whole = [tensor.storage for tensor in tensors if tensor.base is None]
    parts = {tensor.storage for tensor in tensors if tensor.base is not None}
    return len(set(whole)) == len(whole) and parts.isdisjoint(whole)


def parted_runs(
    nests: Sequence[Nest],
    runs: Sequence[NestRun],
    live: Mapping[int, tuple[int, ...]],
    wide: frozenset[int],
    modules: Mapping[str, str],
) -> list[NestRun]:
    """Return the runs, those parted in which modules repeat between cuts at several tensors.

    Args:
        runs: Between cuts at one tensor.
        live: From `live_at_cuts`.
        wide: From `wide_cuts`.
        modules: Path → class.
    """
    narrow = {place for place, tensors in live.items() if len(tensors) == 1}
    if not any(run.start < place < run.end for run in runs for place in wide):
        return list(runs)
    tree = Tree(nests, narrow | wide, modules)
    found: list[NestRun] = []
    for run in _with_stragglers(tree, nests, runs, live):
        units = _repeating(tree, nests, run, live)
        parts: list[NestRun] = []
        place = run.start
        for unit in units:
            parts += [*pieces(nests, narrow, place, unit.start), unit]
            place = unit.end
        parts += pieces(nests, narrow, place, run.end) if units else [run]
        found += _handing_on(nests, parts, live)
    return found


def _with_stragglers(
    tree: Tree, nests: Sequence[Nest], runs: Sequence[NestRun], live: Mapping[int, tuple[int, ...]]
) -> list[NestRun]:
    """Return the runs, joined where a repeated module spans several.

    The last layer of a decoder does: behind its attention no one reads the encoder's end again.
    """
    units = [unit for run in runs if not run.is_unit for unit in _repeating(tree, nests, run, live)]
    known = {_sort(tree, unit.path) for unit in units}
    alike = [path for path in tree.ranges if _sort(tree, path) in known and tree.is_unit(path)]
    spans = [tree.ranges[path][:2] for path in alike]
    found: list[NestRun] = []
    for run in runs:
        over = any(start < run.start < end for start, end in spans)
        if found and over:
            found.append(replace(found.pop(), end=run.end, is_unit=False))
        else:
            found.append(run)
    return found


def _sort(tree: Tree, path: str) -> tuple[str, str]:
    """Return the common properties of modules of one sequence: class, and path without number."""
    return tree.modules.get(path, ""), _NUMBER.sub("", path)


def layers_of(
    nests: Sequence[Nest], runs: Sequence[NestRun], parted: Sequence[NestRun]
) -> list[bool]:
    """Return the parted runs that count as layers: those that repeat; all if none does.

    All do, too, if the repeated modules are the smaller part of the model.

    Args:
        runs: Between cuts at one tensor.
        parted: From `parted_runs`.
    """
    units = [run for run in parted if run.is_unit]
    is_most = 2 * _weight(nests, units) >= _weight(nests, parted)
    if units and (is_most or any(run.is_unit for run in runs)):
        return [run.is_unit for run in parted]
    return [True] * len(parted)


def _repeating(
    tree: Tree, nests: Sequence[Nest], run: NestRun, live: Mapping[int, tuple[int, ...]]
) -> list[NestRun]:
    """Return the modules inside a run that make instances."""
    inside = sorted(_inside(tree, nests, run), key=lambda unit: unit.start)
    kinds = [_sort(tree, unit.path) for unit in inside]
    counts = Counter(_sort(tree, path) for path in tree.ranges if tree.is_unit(path))
    units = [unit for unit, kind in zip(inside, kinds, strict=True) if counts[kind] > 1]
    if not run.is_unit:
        listed = [unit for unit in units if unit.path.rpartition(".")[2].isdigit()]
        # Attributes with numbers (`down1`) are a sequence where most of the work is theirs.
        is_most = 2 * _weight(nests, units) >= _weight(nests, [run])
        return units if is_most else listed
    # A module that repeats is parted only if it is a chain of equal ones, each read by all after.
    whole = _weight(nests, units) == _weight(nests, [run])
    most = max((len(live[unit.start]) for unit in units if unit.start in live), default=0)
    return units if whole and len(set(kinds)) == 1 and most >= _DENSE else []


def _weight(nests: Sequence[Nest], runs: Sequence[NestRun]) -> int:
    """Return the nests of weight in some runs."""
    return sum(nest.kind in WEIGHTY for run in runs for nest in nests[run.start : run.end])


def _inside(tree: Tree, nests: Sequence[Nest], run: NestRun, path: str = "") -> list[NestRun]:
    """Return the modules inside a run that could be instances: the nearest below its own.

    Of a level with lists of alike modules, those in the lists, which checkpointing recomputes.
    """
    found = []
    for child in tree.nearest(path or (run.path if run.is_unit else "")):
        start, end, _ = tree.ranges[child]
        if end <= run.start or start >= run.end:
            continue
        lies = run.start <= start and end <= run.end and (start, end) != (run.start, run.end)
        is_list = tree.is_container(child) and bool(tree.nearest(child))
        if lies and not is_list and (run.is_unit or not _is_level(tree, nests, child)):
            found.append(NestRun(start=start, end=end, path=child, is_unit=True))
        else:
            found += _inside(tree, nests, run, child)
    return found


def _is_level(tree: Tree, nests: Sequence[Nest], path: str) -> bool:
    """Return whether a module holds a list of alike ones, each behind the one before."""
    before: dict[tuple[str, str], int] = {}
    for child in tree.nearest(path):
        if not child.rpartition(".")[2].isdigit():
            continue
        sort, (start, end, _) = _sort(tree, child), tree.ranges[child]
        if sort in before:
            made = {seen.tensor for nest in nests[before[sort] : start] for seen in nest.writes}
            read = {seen.tensor for nest in nests[start:end] for seen in nest.reads}
            return not made.isdisjoint(read)
        before[sort] = start
    return False


def _handing_on(
    nests: Sequence[Nest], parts: Sequence[NestRun], live: Mapping[int, tuple[int, ...]]
) -> list[NestRun]:
    """Return the parts of a run, joined where no tensor of a part is read later."""

    def makes(part: NestRun) -> bool:
        written = {seen.tensor for nest in nests[part.start : part.end] for seen in nest.writes}
        return not written.isdisjoint(live.get(part.end, ()))

    found: list[NestRun] = []
    for part in parts:
        found.append(_joined(found.pop(), part) if found and not makes(found[-1]) else part)
    if found[-1].end < len(nests):
        while len(found) > 1 and not makes(found[-1]):
            last = found.pop()
            found.append(_joined(found.pop(), last))
    return found


def _joined(first: NestRun, second: NestRun) -> NestRun:
    known = second if second.is_unit and not first.is_unit else first
    return replace(known, start=first.start, end=second.end)
