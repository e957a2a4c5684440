"""Host time to get new memory for results, where a C library allocates it."""

from __future__ import annotations

import numpy as np

from wattree.arrays import Floats

#: Blocks of memory that a C library maps anew each time, at the end and at first (see `fresh_s`).
#: [B]
_MAPPED_BYTES, _LEAST_MAPPED_BYTES = float(32 << 20), float(128 << 10)


def fresh_s(result_bytes: Floats, s_per_byte: float, *, is_stored: bool = False) -> Floats:
    """Return the host time to allocate fresh memory for a large result. [s]

    The C library maps blocks above a threshold anew and gives them back when they are freed, so
    that every page is cleared at its first use; it also gives back what is free at the end of its
    heap beyond twice that threshold. glibc's is 128 KiB at first and rises to the largest block
    that was freed, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD). So a single
    result costs from 32 MiB on; gradients of several layers, which are freed together before the
    next step, always do.

    Args:
        result_bytes: Of one result. [B]
        s_per_byte: Of clearing pages; 0 if the framework reuses its memory. [s/B]
        is_stored: Results of several operators are stored, and then freed together.
    """
    least = _LEAST_MAPPED_BYTES if is_stored else _MAPPED_BYTES
    return np.asarray(np.where(result_bytes >= least, result_bytes * s_per_byte, 0.0))
