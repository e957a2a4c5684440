"""Blocks and traffic appended one after another to a table, with running indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wattree.compiler.tasks.ledger import Line, entries, ledgers
from wattree.compiler.tasks.table import TaskTable, joined


class TableBuilder:
    """A task table under construction.

    Attributes:
        exit: The last task that hands something on; -1 before there is one.
        entries, prefetch, stored, fetched, early: As those of `TaskTable`.
        tails: Last compute task of every block so far.
        blocker: A reduction that the next block's compute must await; -1 for none.
        reduced: The last reduction; -1 before there is one.
        ledger: What the bytes of its tasks are made of, in parts.
    """

    def __init__(self, lookahead: int = 2) -> None:
        self.parts: list[np.ndarray] = []
        self._edges: list[np.ndarray] = []
        self._links: list[tuple[int, int]] = []  # behind those
        self.ledger: list[np.ndarray] = [entries(())]
        self.count = 0
        self.exit = -1
        self.entries: list[int] = []
        self.prefetch: list[int] = []
        self.tails: list[int] = []
        self.stored: list[int] = []
        self.fetched: list[int] = []
        self.early: list[tuple[int, int]] = []
        self.blocker = -1
        self.reduced = -1
        self._lookahead = lookahead

    def append(self, tasks: np.ndarray, edges: Sequence[tuple[int, int]] | np.ndarray = ()) -> int:
        """Append tasks with edges among them; return the index of the first."""
        first = self.count
        self.parts.append(tasks)
        if len(edges):
            self._gather_links()
            self._edges.append(np.asarray(edges, dtype=np.int64) + first)
        self.count += len(tasks)
        return first

    def link(self, before: int, after: int) -> None:
        """Let `after` wait for `before`, if there is one."""
        if before >= 0:
            self._links.append((before, after))

    def _gather_links(self) -> None:
        if self._links:
            self._edges.append(np.array(self._links, dtype=np.int64))
            self._links = []

    def wait(self, task: int, back: int) -> None:
        """Let `task` wait for the end of the block that is `back` blocks before the next one."""
        if len(self.tails) >= back:
            self.link(self.tails[-back], task)
        else:
            self.early.append((task, back - len(self.tails)))

    def chain(self, parts: Sequence[np.ndarray], after: int) -> int:
        """Append tasks that run one after another, the first after `after`; return the last."""
        for tasks in parts:
            first = self.append(tasks)
            self.link(after, first)
            after = first + len(tasks) - 1
        return after

    def note(self, lines: Sequence[Line]) -> None:
        """Add lines to the ledger."""
        if lines:
            self.ledger.append(entries(lines))

    def table(self) -> TaskTable:
        """Return the table."""
        tasks = joined(self.parts)
        self._gather_links()
        edges = np.concatenate(self._edges) if self._edges else np.zeros((0, 2), np.int64)
        return TaskTable(
            tasks=tasks,
            edges=edges,
            entries=tuple(self.entries),
            exit=self.exit,
            prefetch=tuple(self.prefetch),
            tails=tuple(self.tails[-self._lookahead :]),
            stored=tuple(self.stored),
            fetched=tuple(self.fetched),
            early=tuple(self.early),
            ledger=ledgers(self.ledger),
        )
