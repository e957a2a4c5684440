"""Which tensor each task allocates and frees: a ledger for each table of tasks.

Tasks carry bytes only; millions of them need no names. A table's ledger says, once for all slots
that play the table, of what those bytes are made. Whatever moves the tasks of a table (joining,
merging, putting two side by side) moves its ledger along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattree.arrays import Integers

_Thing = TypeVar("_Thing")

#: One line: at its start or end a task takes (`bytes` > 0) or gives back (< 0) tensors of an item.
#: `tensors`: how many come to life (1) or go (-1); 0 where part of one is added or a row is split.
#: `block`: place in its chunk of the block that it belongs to, in model order.
ENTRY = np.dtype(
    [
        ("task", np.int64),
        ("at_end", np.bool_),
        ("item", np.int32),
        ("block", np.int32),
        ("tensors", np.int32),
        ("bytes", np.float64),
    ]
)
NO_ENTRIES = np.zeros(0, ENTRY)


#: An entry before it is one: (task, at_end, item, block, tensors, bytes).
Line = tuple[int, bool, int, int, int, float]


class Item(NamedTuple):
    """Description of a tensor.

    Attributes:
        category: One of `CATEGORIES`.
        kind: `stored` (for the whole step), `saved` (from forward to backward), `gathered`,
            `temporary`, `deferred` (a gradient that waits for its weight's), `buffer`.
        block: Block of the model.
        name: Tensor or operator in the block.
    """

    category: str
    kind: str
    block: str
    name: str


@dataclass(slots=True)
class Numbering(Generic[_Thing]):
    """Things numbered in order of appearance."""

    index: dict[_Thing, int] = field(default_factory=dict)

    def __call__(self, thing: _Thing) -> int:
        """Return the number of `thing`."""
        return self.index.setdefault(thing, len(self.index))


Items = Numbering[Item]


@dataclass(slots=True)
class Recorder:
    """Lines of the ledger of one table under construction."""

    lines: list[Line] = field(default_factory=list)

    def take(self, task: int, item: int, size_bytes: float, *, tensors: int = 1) -> None:
        """Record that `task` allocates a tensor at its start."""
        self.lines.append((task, False, item, 0, tensors, size_bytes))

    def give(self, task: int, item: int, size_bytes: float) -> None:
        """Record that `task` frees a tensor at its end."""
        self.lines.append((task, True, item, 0, -1, -size_bytes))

    def drop(self, task: int, item: int) -> None:
        """Remove the records of `item` at `task`."""
        self.lines = [line for line in self.lines if line[0] != task or line[2] != item]

    @property
    def ledger(self) -> NDArray[np.void]:
        """The lines as an array of dtype `ENTRY`."""
        return entries(self.lines)


def entries(lines: Sequence[Line]) -> NDArray[np.void]:
    """Return lines (task, at_end, item, block, tensors, bytes) as an array, without empty ones."""
    return np.array([line for line in lines if line[5] != 0.0], ENTRY)


def ledgers(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return the lines of all parts, concatenated."""
    # As bytes, because numpy copies records field by field.
    return np.frombuffer(bytearray().join([part.tobytes() for part in parts]), ENTRY)


def shifted(
    ledger: NDArray[np.void], to: int | Integers, *, block: int | None = None
) -> NDArray[np.void]:
    """Return a ledger with task numbers shifted by `to`, or mapped to `to[task]`.

    Its lines are of the block at position `block` of a chunk, if that is given.
    """
    result = ledgers([ledger])
    result["task"] = ledger["task"] + to if isinstance(to, int) else to[ledger["task"]]
    if block is not None:
        result["block"] = block
    return result


def taken_for_later(ledger: NDArray[np.void]) -> list[tuple[int, float]]:
    """Return item and bytes of allocations that the tasks of a ledger do not free."""
    items, which = np.unique(ledger["item"], return_inverse=True)
    left = np.bincount(which.reshape(-1), weights=ledger["bytes"], minlength=len(items))
    return [(int(i), float(size)) for i, size in zip(items, left, strict=True) if size > 0]


class Piece(NamedTuple):
    """A slot's table in the program of a stage.

    Attributes:
        offset: First task of the table, or of the pair of tables.
        rows: Where its tasks lie from there; None: one behind another.
        ledger: Of the table; shared by all slots that play it.
    """

    offset: int
    rows: Integers | None
    chunk: int
    micro_batch: int
    ledger: NDArray[np.void]


class Holding(NamedTuple):
    """Tensors that a stage holds for the whole step.

    Attributes:
        item: Its number.
        tensors: How many there are, one per block that holds it.
        bytes: Of all. [B]
    """

    item: int
    tensors: int
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLedger:
    """Allocations and frees of one stage's tasks, and its static memory."""

    pieces: tuple[Piece, ...]
    holdings: tuple[Holding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLedger:
    """The ledgers of all stages of an execution graph.

    Attributes:
        items: What entries name by number.
        stages: One ledger for each stage, and again for each level of ranks whose experts get other
            numbers of tokens. A rank class plays the tasks of its stage in their order.
        stage_of_class: Which of them is that of every rank class.
    """

    items: tuple[Item, ...]
    stages: tuple[StageLedger, ...]
    stage_of_class: Integers


def summed(holdings: Mapping[int, Sequence[float]]) -> tuple[Holding, ...]:
    """Return item → bytes of each tensor as holdings, without empty ones."""
    return tuple(
        Holding(item, sum(size > 0 for size in sizes), float(sum(sizes)))
        for item, sizes in holdings.items()
        if sum(sizes) > 0
    )
