"""Traces of several ranks together: matched collectives, clock offsets, waiting ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattree.errors import RunError
from wattree.kineto.op_classes import op_classes
from wattree.kineto.traced_rank import TracedCollective, TracedRank, read_traced_rank

#: Collectives that tell the offset of two clocks: fewer say too little of their scatter.
_LEAST_MATCHED = 3
#: Share of the step by which ranks of one run leave collectives apart only on busy machines, where
#: a rank that has what it waited for gets no core.
_UNMATCHED = 0.25
#: Clocks that lie farther apart than this are named. [s]
_APART_S = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRanks:
    """The traces of all ranks of a run.

    Attributes:
        ranks: In the order of their numbers.
        matched: Collectives that all their ranks' traces hold: rank index → what it had of each.
        offsets_s: What the clock of each rank is ahead of the first's. [s]
        notes: What the traces do not show.
    """

    ranks: tuple[TracedRank, ...]
    matched: tuple[Mapping[int, TracedCollective], ...]
    offsets_s: tuple[float, ...]
    notes: tuple[str, ...]

    def waits(self) -> list[list[tuple[float, float]]]:
        """Return when each rank waited for others inside collectives, by its own clock. [s]

        From its own start until the last rank began. Exchanges between two ranks that are not
        matched count as waiting while nothing else goes on: a receiver waits for its sender.
        """
        found: list[list[tuple[float, float]]] = [[] for _ in self.ranks]
        for each in self.matched:
            last_s = max(own.start_s - self.offsets_s[rank] for rank, own in each.items())
            for rank, own in each.items():
                end_s = min(last_s + self.offsets_s[rank], own.end_s)
                if end_s > own.start_s:
                    found[rank].append((own.start_s, end_s))
        pairwise = op_classes().pairwise
        for rank, trace in enumerate(self.ranks):
            found[rank] += [
                (each.start_s, each.end_s)
                for each in trace.collectives
                if pairwise.search(each.kind)
            ]
        return found

    def late_s(self) -> dict[int, float]:
        """Return rank index → how long all others waited for it in matched collectives. [s]"""
        found = dict.fromkeys(range(len(self.ranks)), 0.0)
        for each in self.matched:
            starts = sorted(
                (own.start_s - self.offsets_s[rank], rank) for rank, own in each.items()
            )
            found[starts[-1][1]] += starts[-1][0] - starts[-2][0]
        return found


def read_ranks(paths: Sequence[Path]) -> TracedRanks:
    """Return the traces of the ranks of one run.

    Raises:
        RunError: A file is no trace, or two are of one rank or of different runs.
    """
    ranks = [read_traced_rank(path) for path in paths]
    _refuse_mixed(ranks)
    ranks.sort(key=lambda each: each.rank if each.rank is not None else 0)
    matched = tuple(_matched(ranks))
    offsets, notes = _offsets(ranks, matched)
    world = max((each.world or 1 for each in ranks), default=1)
    if world > len(ranks):
        notes.append(
            f"{len(ranks)} of {world} ranks: what those without a trace do, and who waits for "
            "whom among them, is not known"
        )
    if len(ranks) == 1 and world > 1:
        notes.append(
            "one rank alone: waiting cannot be distinguished from communicating; both are "
            "shown as communication"
        )
    return TracedRanks(ranks=tuple(ranks), matched=matched, offsets_s=offsets, notes=tuple(notes))


def _refuse_mixed(ranks: Sequence[TracedRank]) -> None:
    problems = []
    numbers = Counter(each.rank for each in ranks if each.rank is not None)
    for number, count in sorted(numbers.items()):
        if count > 1:
            files = ", ".join(each.source for each in ranks if each.rank == number)
            problems.append(f"rank {number} is in {count} files: {files}")
    worlds = sorted({each.world for each in ranks if each.world is not None})
    if len(worlds) > 1:
        problems.append(f"of different runs: of {', '.join(map(str, worlds))} ranks")
    if len({each.on_device for each in ranks}) > 1:
        problems.append("some are of devices, others of processors alone")
    if len(ranks) > 1 and not set.intersection(*(set(each.steps) for each in ranks)):
        problems.append("no step is in all of them: of different runs, or profiled at other times")
    if problems:
        raise RunError("--trace", problems)


def _matched(ranks: Sequence[TracedRank]) -> Iterator[dict[int, TracedCollective]]:
    """Yield the collectives that several ranks have, by group and number."""
    if len(ranks) < 2:
        return
    pairwise = op_classes().pairwise
    found: dict[object, dict[int, TracedCollective]] = defaultdict(dict)
    for rank, trace in enumerate(ranks):
        for key, each in _numbered(trace):
            if not pairwise.search(each.kind):
                found[key][rank] = each
    yield from (of_ranks for of_ranks in found.values() if len(of_ranks) > 1)


def _numbered(trace: TracedRank) -> Iterator[tuple[object, TracedCollective]]:
    """Yield collectives with a key that is the same on all ranks of their group.

    Without numbers of their own they are counted, from the begin of each step on.
    """
    counts: Counter[object] = Counter()
    starts = [(start_s, number) for number, (start_s, _) in trace.steps.items()]
    step = None
    for each in trace.collectives:
        while starts and each.start_s >= starts[0][0]:
            step = starts.pop(0)[1]
        if each.sequence is not None:
            yield (each.group, each.kind, each.sequence), each
        elif step is not None:
            key = (each.group, each.kind, step)
            counts[key] += 1
            yield (*key, counts[key]), each


def _late_leaving(
    pair: tuple[TracedRank, TracedRank],
    both: Sequence[tuple[TracedCollective, TracedCollective]],
    scatter_s: float,
) -> str | None:
    """Return a note where a rank leaves collectives at other moments than the first does.

    Raises:
        RunError: By no clock has each begun in both before it ends in either, so that the files are
            of different runs.
    """
    rank = pair[1]
    step_s = min(np.mean([end - begin for begin, end in each.steps.values()]) for each in pair)
    if scatter_s <= _UNMATCHED * step_s:
        return None
    words = f"{rank.source}: leaves collectives {scatter_s:.2g} s apart from the first rank"
    least_s = max(other.start_s - first.end_s for first, other in both)
    most_s = min(other.end_s - first.start_s for first, other in both)
    if least_s > most_s:
        raise RunError(
            "--trace", [f"{words}, by any clock, in steps of {step_s:.2g} s: of different runs"]
        )
    return f"{words}, as on a busy machine: times of waiting are off by as much"


def _offsets(
    ranks: Sequence[TracedRank], matched: Sequence[Mapping[int, TracedCollective]]
) -> tuple[tuple[float, ...], list[str]]:
    """Return the offset of each clock from the first, and notes about it.

    All ranks leave a collective together, but for what the last message takes.
    """
    found, notes = [0.0], []
    for rank in range(1, len(ranks)):
        both = [(each[0], each[rank]) for each in matched if {0, rank} <= each.keys()]
        apart = [other.end_s - first.end_s for first, other in both]
        if len(apart) < _LEAST_MATCHED:
            found.append(0.0)
            notes.append(f"{ranks[rank].source}: too few collectives in common to set its clock")
            continue
        middle = float(np.median(apart))
        scatter = float(np.median(np.abs(np.array(apart) - middle)))
        late = _late_leaving((ranks[0], ranks[rank]), both, scatter)
        notes += [] if late is None else [late]
        found.append(middle)
        if abs(middle) > max(_APART_S, 4 * scatter):
            notes.append(
                f"{ranks[rank].source}: its clock is {abs(middle):.3g} s "
                f"{'ahead' if middle > 0 else 'behind'}; set by {len(apart)} collectives, to "
                f"{scatter:.2g} s"
            )
    return tuple(found), notes
