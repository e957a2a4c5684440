"""Distinct values of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from wattree.arrays import NDArray


def distinct(values: NDArray[Any], axis: int | None = None) -> NDArray[Any]:
    """Return the distinct values, or rows or columns, in order.

    With places asked for, numpy does not import its masked arrays, which takes as long as a fifth
    of its own import and is needed for nothing here.
    """
    return np.unique(values, axis=axis, return_index=True)[0]
