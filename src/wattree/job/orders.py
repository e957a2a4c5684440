"""Pipeline orders that users bring: from a job file or a file of its own to slots by stage.

Whether an order may run is not asked here, only whether it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from wattree.files import read_yaml
from wattree.job.problems import Problems, seen, unknown_key
from wattree.strategy.schedules import Order, Slot, read_slot

#: More pieces are no schedule that someone wrote or will read.
_MOST_PIECES = 1_000_000
_PIECE = "a piece such as F0, B0, I0 or W0, with @1 behind it on the stage's second chunk"


def orders_from(
    value: object, place: str, *, folder: Path, problems: Problems
) -> tuple[Order, ...] | None:
    """Return the order of every stage, or None after recording problems.

    Args:
        value: A list with an item for each stage (text or list of pieces), or the path of a YAML
            file with such a list under `order`.
        place: Where it stands in the job file.
        folder: Where relative paths start.
        problems: Where faults go.
    """
    if isinstance(value, str):
        path = folder / value
        found: Mapping[str, object] = {}
        before = len(problems.lines)
        with problems.at(place):
            found = read_yaml(path)
        if len(problems.lines) > before:
            return None
        for key in found:
            if key != "order":
                problems.add(place, f"{path}: {unknown_key(key, ('order',))}")
        value, place = found.get("order"), f"{place}: {path}: order"
    if not isinstance(value, list) or not value:
        problems.add(place, f"{seen(value)}, expected a list with an item for each stage")
        return None
    orders = [
        _order(item, f"{place}[{stage}]", problems=problems) for stage, item in enumerate(value)
    ]
    read = [order for order in orders if order is not None]
    return tuple(read) if len(read) == len(orders) else None


def _order(value: object, place: str, *, problems: Problems) -> Order | None:
    """Return the pieces of one stage; only the first that cannot be read is noted."""
    pieces = value.split() if isinstance(value, str) else value
    if not isinstance(pieces, list) or not pieces or len(pieces) > _MOST_PIECES:
        problems.add(place, f"{seen(value)}, expected pieces in order, such as 'F0 F1 B0 B1'")
        return None
    slots: list[Slot] = []
    for piece in pieces:
        slot = read_slot(piece) if isinstance(piece, str) else None
        if slot is None:
            problems.add(place, f"{seen(piece)}, expected {_PIECE}")
            return None
        slots.append(slot)
    return tuple(slots)
