"""Configure the C library to cache memory that a training step frees, for the next step.

By default glibc maps large blocks anew and gives them back when they are freed, so that the kernel
clears every page of every gradient in every step: a fifth to a quarter of the processor time of a
step of large layers. Programs that train on processors, or time what training does there, call
`cache_freed_memory` before they make tensors. The price is that a process holds its peak to its
end.

References: mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD.
"""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
#: Variables by which a user has said what the library shall do, or which library.
_OWN_PREFIX, _OWN = "MALLOC_", ("GLIBC_TUNABLES", "LD_PRELOAD")


def cache_freed_memory() -> bool:
    """Let the C library cache the memory that this process frees; return whether it does.

    Nothing is changed where the library is not glibc, or where the environment says what it shall
    do (`MALLOC_…`, `GLIBC_TUNABLES`) or names another library (`LD_PRELOAD`).
    """
    is_configured = any(name.startswith(_OWN_PREFIX) for name in os.environ)
    if (
        is_configured
        or any(os.environ.get(name) for name in _OWN)
        or not sys.platform.startswith("linux")
    ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    changed = [library.mallopt(_M_MMAP_MAX, 0), library.mallopt(_M_TRIM_THRESHOLD, -1)]
    return all(changed)
