"""Tables that are computed once for each combination of what they depend on."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from wattree.arrays import Floats, Integers
from wattree.closed_form.degrees import MANY

_Table = TypeVar("_Table")
#: Tables that are kept at most, some 100 kB each.
_MOST_TABLES = 2048
#: Largest number of which another column can be packed into the same integer.
_LARGEST = 2**62 // MANY


class TableCache:
    """Cached tables of blocks by their dependencies, shared between sets of options."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[object, Any]] = {}

    def of(self, key: Hashable, named: object, make: Callable[[], _Table]) -> _Table:
        """Return the cached value of a key; objects that it names by id are `named` and stored."""
        if key not in self._known:
            if len(self._known) >= _MOST_TABLES:
                self._known.clear()
            self._known[key] = named, make()
        found: _Table = self._known[key][1]
        return found


def distinct_columns(*columns: Floats | Integers) -> tuple[Integers, Integers]:
    """Return the first row of each distinct combination, and the combination of every row."""
    key, most = np.zeros(len(columns[0]), dtype=np.int64), 1
    if len(key) == 1:
        return key, key
    for column in columns:  # degrees and micro-batches are whole and below `MANY`
        if most > _LARGEST:
            distinct, key = np.unique(key, return_inverse=True)
            most = len(distinct)
        values = column.astype(np.int64)
        above = int(values.max(initial=0)) + 1
        key, most = key * above + values, most * above
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse
