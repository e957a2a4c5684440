"""Pass 9b: concatenates the tables of a stage's slots, with the edges between them.

A step repeats a few tables once for every micro-batch, so tables are kept once, and the tasks of
the step name the records of those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers
from wattree.compiled import kernel
from wattree.compiler.tasks.chunk_tables import ChunkTables, kinds_of
from wattree.compiler.tasks.ledger import Piece
from wattree.compiler.tasks.pairs import PairedTables
from wattree.compiler.tasks.stage_program import Send, StageTransfer
from wattree.compiler.tasks.table import TASK, TaskTable, joined
from wattree.graph import Phase
from wattree.lowering.streams import Stream
from wattree.strategy.schedules import ChunkPlacement, Order, Place, Slot, SlotWork
from wattree.strategy.schedules.placement import Hop

Pairs = list[tuple[int, int]]

#: In place of a micro-batch: those that the tasks of a table name.
_AS_IT_IS = -2


class TableSequence:
    """Concatenated tables, each stored once however often it occurs."""

    def __init__(self) -> None:
        self._tables: list[TaskTable] = []
        self._numbers: dict[int, int] = {}  # by identity, of tables that are kept
        self._order: list[int] = []
        self._micro_batches: list[int] = []
        self.count = 0

    def append(self, table: TaskTable, micro_batch: int = _AS_IT_IS) -> int:
        """Append a table, for one micro-batch or unchanged; return the number of its first task."""
        number = self._numbers.setdefault(id(table), len(self._tables))
        if number == len(self._tables):
            self._tables.append(table)
        self._order.append(number)
        self._micro_batches.append(micro_batch)
        first = self.count
        self.count += len(table.tasks)
        return first

    def records(self) -> NDArray[np.void]:
        """Return the tasks of every table once."""
        return joined([table.tasks for table in self._tables])

    def repeated(self, placed: Sequence[PlacedSlot]) -> RepeatedTables:
        """Return the tasks and edges of all tables, given the slots, pairs of which share one."""
        sizes = [len(table.tasks) for table in self._tables]
        edges = [_sorted(table.edges) for table in self._tables]
        tables = _Tables(
            task_offsets=_starts(sizes),
            edge_offsets=_starts([len(part) for part in edges]),
            edges=np.concatenate(edges),
            micro_batch=np.concatenate([table.tasks["micro_batch"] for table in self._tables]),
        )
        order = np.array(self._order, dtype=np.int64)
        found = RepeatedTables(
            rows=np.empty(self.count, dtype=np.int64),
            micro_batches=np.empty(self.count, dtype=np.int32),
            edges=np.empty((int(np.diff(tables.edge_offsets)[order].sum()), 2), dtype=np.int32),
        )
        _repeat(tables, order, np.array(self._micro_batches, dtype=np.int64), found)
        for item in placed:
            if item.rows is not None:
                found.micro_batches[item.first + item.rows] = item.slot.micro_batch
        return found


class RepeatedTables(NamedTuple):
    """All tasks of a sequence of tables.

    Attributes:
        rows: Which of the records each task is.
        micro_batches: Of each task.
        edges: Index pairs inside all tables, in their order.
    """

    rows: Integers
    micro_batches: NDArray[np.int32]
    edges: NDArray[np.int32]


class _Tables(NamedTuple):
    """Each table once: offsets of tasks and edges, the edges, the tasks' own micro-batches."""

    task_offsets: Integers
    edge_offsets: Integers
    edges: Integers
    micro_batch: NDArray[np.int32]


@kernel
def _repeat(
    tables: _Tables, order: Integers, micro_batches: Integers, found: RepeatedTables
) -> None:
    """Write the tables in their order."""
    task = edge = 0
    for place in range(len(order)):
        table, micro_batch, first = order[place], micro_batches[place], task
        for row in range(tables.task_offsets[table], tables.task_offsets[table + 1]):
            found.rows[task] = row
            own = micro_batch == _AS_IT_IS
            found.micro_batches[task] = tables.micro_batch[row] if own else micro_batch
            task += 1
        for row in range(tables.edge_offsets[table], tables.edge_offsets[table + 1]):
            found.edges[edge, 0] = tables.edges[row, 0] + first
            found.edges[edge, 1] = tables.edges[row, 1] + first
            edge += 1


def _sorted(edges: Integers) -> Integers:
    return edges[np.argsort(edges[:, 0], kind="stable")]


def _starts(counts: Sequence[int]) -> Integers:
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


class PlacedSlot(NamedTuple):
    """A slot's table among those of the stage.

    Attributes:
        first: Number of the first task of the table, or of the pair of tables.
        rows: Where its tasks lie from there; None: as they are.
        transfer: Its transfer, -1 if it sends nothing.
        arrival: First and last task of what it makes of parts that it is sent; none if nothing.
    """

    slot: Slot
    table: TaskTable
    first: int
    rows: Integers | None
    transfer: int
    arrival: tuple[int, int] | None = None

    def row(self, task: int) -> int:
        """Return the number, in the stage, of a task of the table."""
        return self.first + (task if self.rows is None else int(self.rows[task]))

    @property
    def piece(self) -> Piece:
        """Return the table's part of the stage's ledger."""
        return Piece(
            offset=self.first,
            rows=self.rows,
            chunk=self.slot.chunk,
            micro_batch=self.slot.micro_batch,
            ledger=self.table.ledger,
        )


class SlotTransfers:
    """The destinations of the results of a stage's slots, and the tasks that send them.

    Attributes:
        stage, placement: Its number, and where the chunks of all stages lie.
        transfer: Record of a transfer to a neighbor, ready but for direction and size.
    """

    def __init__(
        self,
        stage: int,
        placement: ChunkPlacement,
        transfer: np.void,
        boundary_bytes: Sequence[Sequence[tuple[float, float]]],
        arrivals: tuple[TaskTable | None, TaskTable | None],
    ) -> None:
        """Make the tasks.

        Args:
            stage, placement, transfer: As above.
            boundary_bytes: Of each chunk, what crosses the border before it and the one after it
                for a micro-batch, each forward and back. [B]
            arrivals: What it makes of parts that it is sent, forward and backward.
        """
        self.stage, self.placement, self.transfer = stage, placement, transfer
        self._arrivals = arrivals
        self._hops: dict[tuple[int, bool], Hop | None] = {}
        self._tables: dict[tuple[int, bool], TaskTable | None] = {}
        for chunk, (before, after) in enumerate(boundary_bytes):
            for backward in (False, True):
                hops = placement.before if backward else placement.after
                hop = self._hops[chunk, backward] = hops.get(Place(stage, chunk))
                # Before what is trained no gradients are sent back.
                sends = hop is not None and hop.heading != 0 and (not backward or before[1] > 0.0)
                table = None
                if hop is not None and sends:
                    size = before[1] if backward else after[0]
                    table = _transfer_table(transfer, hop.heading, size, backward=backward)
                self._tables[chunk, backward] = table

    def hop(self, slot: Slot) -> Hop | None:
        """Return the destination of the slot's result; None if it stays."""
        return self._hops[slot.chunk, slot.backward]

    def table(self, slot: Slot) -> TaskTable | None:
        """Return the task that sends the slot's result; None without one."""
        return self._tables[slot.chunk, slot.backward] if slot.hands_on else None

    def arrival(self, slot: Slot) -> TaskTable | None:
        """Return the collectives that join the parts of the slot's input; None if it is whole."""
        return self._arrivals[slot.backward] if slot.hands_on else None


def _transfer_table(
    transfer: np.void, heading: int, size_bytes: float, *, backward: bool
) -> TaskTable:
    task = np.array([transfer], TASK)
    task["stream"] = Stream.SEND_NEXT if heading > 0 else Stream.SEND_PREVIOUS
    task["phase"] = Phase.BACKWARD if backward else Phase.FORWARD
    task["wire_bytes"] = size_bytes
    return TaskTable(tasks=task, edges=np.zeros((0, 2), np.int64), exit=0)


def place_slots(
    order: Order,
    chunks: Sequence[ChunkTables],
    tables: TableSequence,
    transfers: SlotTransfers,
    pairs: PairedTables,
    *,
    keeps_gathered: bool,
) -> list[PlacedSlot]:
    """Append the table of every slot, its arrivals, and its transfer to `tables`."""
    kinds, kind_of = kinds_of(order, keeps_gathered=keeps_gathered)
    found = [chunks[slot.chunk].of(slot.work, turn) for slot, turn in kinds]
    sending = [
        transfers.table(slot) if table.exit >= 0 else None
        for (slot, _), table in zip(kinds, found, strict=True)
    ]
    own = [found[kind] for kind in kind_of]
    placed: list[PlacedSlot] = []

    def sent(place: int) -> int:
        transfer = sending[kind_of[place]]
        return -1 if transfer is None else tables.append(transfer, order[place].micro_batch)

    def arrived(slot: Slot) -> tuple[int, int] | None:
        arrival = transfers.arrival(slot)
        if arrival is None:
            return None
        first = tables.append(arrival, slot.micro_batch)
        return first, first + len(arrival.tasks) - 1

    index = 0
    while index < len(order):
        slot, table = order[index], own[index]
        if index + 1 < len(order) and order[index + 1].overlaps:
            pair = pairs.together(table, own[index + 1])
            first = tables.append(pair.table, slot.micro_batch)
            for place, rows in zip((index, index + 1), pair.rows, strict=True):
                placed.append(PlacedSlot(order[place], own[place], first, rows, sent(place)))
            index += 2
        else:
            arrival = arrived(slot)
            first = tables.append(table, slot.micro_batch)
            placed.append(PlacedSlot(slot, table, first, None, sent(index), arrival))
            index += 1
    return placed


def receives_of(
    placed: Sequence[PlacedSlot], *, stage: int, placement: ChunkPlacement
) -> dict[StageTransfer, tuple[int, ...]]:
    """Return the transfers that the stage's slots receive → the tasks that wait for them."""
    found = {}
    for item in placed:
        slot, entries = item.slot, item.table.entries
        if not slot.hands_on:
            continue
        is_boundary = not slot.backward and Place(stage, slot.chunk) in placement.before
        if not entries and is_boundary:  # what comes is for later blocks than the first
            computes = np.flatnonzero(item.table.tasks["stream"] == Stream.COMPUTE)
            entries = tuple(computes[:1].tolist())
        key = StageTransfer(slot.chunk, slot.micro_batch, slot.backward)
        found[key] = tuple([item.row(entry) for entry in entries])
    return found


def arriving(
    placed: Sequence[PlacedSlot], receives: Mapping[StageTransfer, tuple[int, ...]]
) -> tuple[dict[StageTransfer, tuple[int, ...]], Pairs]:
    """Return the tasks that wait for transfers whose parts are gathered first, and the edges.

    Args:
        receives: What waits for whole tensors, from `receives_of`.
    """
    found, edges = dict(receives), []
    for item in placed:
        if item.arrival is not None:
            slot, (first, last) = item.slot, item.arrival
            key = StageTransfer(slot.chunk, slot.micro_batch, slot.backward)
            edges += [(last, entry) for entry in receives[key]]
            found[key] = (first,)
    return found, edges


def sends_of(placed: Sequence[PlacedSlot], transfers: SlotTransfers) -> list[Send]:
    """Return the transfers to other stages."""
    sends = []
    for item in placed:
        if item.transfer >= 0 and (hop := transfers.hop(item.slot)) is not None:
            transfer = StageTransfer(hop.place.chunk, item.slot.micro_batch, item.slot.backward)
            sends.append(Send(item.transfer, hop.place.stage, hop.heading, transfer))
    return sends


def slot_edges(
    placed: Sequence[PlacedSlot],
    transfers: SlotTransfers,
    receives: Mapping[StageTransfer, tuple[int, ...]],
) -> Pairs:
    """Return the edges between the tables of slots."""
    edges: Pairs = []
    ahead: list[int] = []  # the last compute tasks before the item
    begun: list[int] = []  # those before the first micro-batch of the chunk that began last
    for item, following in pairwise([*placed, None]):
        assert item is not None
        slot, table = item.slot, item.table
        if item.transfer >= 0:
            edges.append((item.row(table.exit), item.transfer))
        elif slot.hands_on and table.exit >= 0 and (hop := transfers.hop(slot)) is not None:
            # Tensors passed inside a stage (the turn of a V) are available at once.
            entries = receives[StageTransfer(hop.place.chunk, slot.micro_batch, slot.backward)]
            edges += [(item.row(table.exit), entry) for entry in entries]
        if table.a_chunk_ahead:
            edges += [(task, item.row(table.prefetch[0])) for task in begun[-1:]]
            begun = ahead
        if ahead and (table.prefetch or table.early):
            edges += _prefetch_edges(ahead, item)
        if ahead and slot.work is SlotWork.WEIGHT_GRADIENT:
            # A weight gradient that starts on another stream waits for the work before it.
            edges += [(ahead[-1], item.row(entry)) for entry in table.entries]
        is_half = following is not None and following.first == item.first
        if table.tails and not is_half:
            ahead = [item.row(tail) for tail in table.tails]
    return edges


def _prefetch_edges(ahead: Sequence[int], item: PlacedSlot) -> Pairs:
    """Let parameter gathers and copies in run ahead across micro-batches as far as inside one."""
    gathers = [item.row(each) for each in item.table.prefetch if not item.table.a_chunk_ahead]
    tails = [*[ahead[0]] * (len(gathers) - len(ahead)), *ahead]
    pairs = list(zip(tails[-len(gathers) :], gathers, strict=False)) if gathers else []
    pairs += [(ahead[-min(back, len(ahead))], item.row(copy)) for copy, back in item.table.early]
    return pairs


def return_edges(placed: Sequence[PlacedSlot]) -> Pairs:
    """Let a copy in start after the copy out of the same data has ended."""
    stored: dict[tuple[int, int], list[int]] = {}
    pairs: Pairs = []
    for item in placed:
        if item.table.stored:
            key = item.slot.chunk, item.slot.micro_batch
            stored[key] = [item.row(copy) for copy in item.table.stored]
        if item.table.fetched:
            key = item.slot.chunk, item.slot.micro_batch
            back = [item.row(copy) for copy in item.table.fetched]
            pairs += zip(reversed(stored[key]), back, strict=True)
    return pairs
