"""The tasks of all stages, and how often each is executed: once per copy of its pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Flags, Floats, Integers
from wattree.compiler.folding.kernels import Patterns
from wattree.compiler.folding.stage_classes import StageClasses
from wattree.compiler.tasks.stage_program import StageProgram
from wattree.compiler.tasks.table import joined
from wattree.errors import StrategyError

#: Tasks of all rank classes that are built at most: some 25 GiB of arrays.
_MOST_INSTANCES = 100_000_000


class TaskInstances:
    """The tasks of all stages' programs in order, and how often each is executed.

    Attributes:
        programs, classes: By stage.
        records: Of the tasks of all stages, `(R,)`.
        by_level: The same with the figures of each level, the first of which is `records`.
        stage_of_record: `(R,)`.
        row: Which of the records each task is, `(T,)`.
        level: Of each class, over all stages.
        first_task, class_base: First task and class of each stage, and their numbers.
        patterns: Who shares an instance.
        last_member: The class whose figures an instance takes, by copy of a pattern.
        pattern, copies: Pattern and instances of the tasks that are a record, `(R,)`.
        first: First instance of each task, `(T,)`.
        is_single: Whether each stage has one class, so that each task is executed once.
    """

    def __init__(self, programs: Sequence[StageProgram], classes: Sequence[StageClasses]) -> None:
        """Join the programs of all stages.

        Raises:
            StrategyError: So many ranks differ that memory cannot hold what they do.
        """
        self.programs, self.classes = programs, classes
        counts = [len(program.rows) for program in programs]
        sizes = [len(program.records) for program in programs]
        self.records = joined([program.records for program in programs])
        self.by_level = [self.records]
        for at in range(max(len(program.levels) for program in programs)):
            records = [p.levels[at] if at < len(p.levels) else p.records for p in programs]
            self.by_level.append(joined(records))
        self.stage_of_record = np.repeat(np.arange(len(programs)), sizes)
        before = zip(programs, starts(sizes)[:-1].tolist(), strict=True)
        self.row = np.concatenate([program.rows + first for program, first in before])
        self.level = np.concatenate([stage.level for stage in classes])
        self.first_task = starts(counts)
        self.class_base = starts([len(stage.ranks) for stage in classes])
        orbits = [_orbits(stage) for stage in classes]
        self.patterns = _patterns([orbit for stage in orbits for orbit in stage])
        ends = self.patterns.member_offsets[1:]
        self.last_member = self.patterns.members[np.maximum(ends, 1) - 1]
        self.pattern = self._pattern_of_record([len(stage) for stage in orbits])
        self.copies: Integers = (np.diff(self.patterns.copies_at) - 1)[self.pattern]
        self.is_single = int(self.class_base[-1]) == len(programs)
        self._check_count()  # before arrays of that length are made
        self.first = (
            np.arange(len(self.row)) if self.is_single else starts(self.copies[self.row])[:-1]
        )
        self._played: tuple[Integers, Integers] | None = None  # level and record of instances

    def _check_count(self) -> None:
        if (count := self.instances) > _MOST_INSTANCES:
            differing = int(self.class_base[-1])
            raise StrategyError(
                {
                    "cluster": f"{differing:,} classes of ranks that differ make {count:,} tasks, "
                    f"more than the {_MOST_INSTANCES:,} that can be executed; let fewer devices "
                    "differ (stragglers, slowdown, slow_links), fold ranks that do the same, or "
                    "use fewer micro-batches"
                }
            )

    @property
    def instances(self) -> int:
        """Number of executed tasks."""
        return len(self.row) if self.is_single else int(self.copies[self.row].sum())

    @property
    def width(self) -> Integers:
        """Classes of each record's stage, `(R,)`."""
        return np.diff(self.class_base)[self.stage_of_record]

    def column(self, name: str, factor: Floats | None = None) -> NDArray[Any]:
        """Return a field for every instance, times a factor of its record."""
        if len(self.by_level) == 1:
            values = self.records[name] if factor is None else self.records[name] * factor
            values = np.ascontiguousarray(values).take(self.row)  # faster than by an index
            return values if self.is_single else np.repeat(values, self.copies[self.row])
        if self._played is None:
            _, record, owner = self.instances_of(np.ones(len(self.records), dtype=bool))
            self._played = self.level[owner], record
        values = np.stack([records[name] for records in self.by_level])
        return np.asarray((values if factor is None else values * factor)[self._played])

    def micro_batches(self) -> Integers:
        """Return the micro-batch of every instance."""
        values = np.concatenate([program.micro_batches for program in self.programs])
        values = values.astype(np.int64)
        return values if self.is_single else np.repeat(values, self.copies[self.row])

    def instances_of(self, chosen: Flags) -> tuple[Integers, Integers, Integers]:
        """Return the instances of chosen records' tasks: number, record, class with the figures."""
        tasks = np.flatnonzero(chosen[self.row])
        record, owner, copy = self.owners_of(self.row[tasks])
        return np.repeat(self.first[tasks], self.copies[self.row[tasks]]) + copy, record, owner

    def owners_of(self, records: Integers) -> tuple[Integers, Integers, Integers]:
        """Return the instances of one task per record: record, class with the figures, copy."""
        copies = self.copies[records]
        record = np.repeat(records, copies)
        copy = np.arange(len(record)) - np.repeat(starts(copies)[:-1], copies)
        member = self.last_member[self.patterns.copies_at[self.pattern[record]] + copy]
        return record, self.class_base[self.stage_of_record[record]] + member, copy

    def members_of(self, chosen: Flags) -> tuple[Integers, Integers, Integers]:
        """Return every (instance, record, class) of tasks of chosen records, by instance."""
        tasks = np.flatnonzero(chosen[self.row])
        width = self.width[self.row[tasks]]
        task = np.repeat(tasks, width)
        place = np.arange(len(task)) - np.repeat(starts(width)[:-1], width)
        record = self.row[task]
        at = self.patterns.inverse_at[self.pattern[record]]
        member = self.patterns.members[at + place]
        instance = self.first[task] + self.patterns.inverse[at + member]
        return instance, record, self.class_base[self.stage_of_record[record]] + member

    def mixed(self) -> Flags:
        """Return whether each record is of a stage with several levels of ranks, `(R,)`."""
        return np.array([bool(program.levels) for program in self.programs])[self.stage_of_record]

    def _pattern_of_record(self, patterns: Sequence[int]) -> Integers:
        """Collectives go by the orbits of their axes, everything else by classes."""
        start = starts(patterns)
        axes = self.records["axes"].astype(np.int64)
        pattern = start[self.stage_of_record]
        for number, stage in enumerate(self.classes):
            own = self.stage_of_record == number
            places = {axis: place for place, axis in enumerate(stage.orbits, start=1)}
            table = np.zeros(max([int(axes[own].max(initial=0)), *places]) + 2, dtype=np.int64)
            for axis, place in places.items():
                table[axis] = place
            pattern[own] += table[axes[own]]  # -1, no axes: the last entry
        return pattern


def starts(counts: Sequence[int] | Integers) -> Integers:
    """Return the start of each of consecutive runs, and the end of the last one."""
    starts = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _orbits(stage: StageClasses) -> list[Integers]:
    """Return the copy that each class has of a task: of its own, then by number of axes."""
    return [np.arange(len(stage.ranks)), *stage.orbits.values()]


def _patterns(orbits: Sequence[Integers]) -> Patterns:
    copies = [np.bincount(orbit) for orbit in orbits]
    members_at = starts([len(orbit) for orbit in orbits])
    offsets = [at + starts(count) for at, count in zip(members_at, copies, strict=False)]
    return Patterns(
        copies_at=starts([len(row) for row in offsets]),
        member_offsets=np.concatenate(offsets),
        members=np.concatenate([np.argsort(orbit, kind="stable") for orbit in orbits]),
        inverse_at=members_at,
        inverse=np.concatenate(orbits).astype(np.int64),
    )
