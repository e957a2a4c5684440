"""Types of arrays in annotations. Nothing here loads numpy, which some commands never use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["ArrayLike", "Flags", "Floats", "Integers", "NDArray"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
else:  # no one evaluates annotations of arrays
    ArrayLike = NDArray = Flags = Floats = Integers = Any
