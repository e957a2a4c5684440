"""How the kernels are compiled: one entry point kept on disk, everything it calls inside it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

__all__ = ["is_cached", "kernel", "part"]

F = TypeVar("F", bound=Callable[..., object])


# The types that numba ships know neither all of its options nor its cache.
_njit: Any = numba.njit

#: Without the runtime of numba, arrays are plain memory: nothing can be allocated, and nothing
#: counts references, which took nine tenths of the time of an event.
_KERNEL = {"_nrt": False}
#: Parts are called from kernels only, and a call would cost more than most of them do.
_PART = {**_KERNEL, "forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def kernel(function: F) -> F:
    """Compile an entry point and keep the machine code on disk until a source here changes."""
    dispatcher = _njit(cache=True, **_KERNEL)(function)
    # By itself numba looks at the file of the entry point alone, and would go on running old code
    # after a change to any of the parts that were compiled into it.
    dispatcher._cache._cache_file._source_stamp = _sources_digest()  # noqa: SLF001
    return cast("F", dispatcher)


def part(function: F) -> F:
    """Compile a piece of a kernel into it."""
    return cast("F", _njit(**_PART)(function))


def is_cached(dispatcher: Any) -> bool:
    """Return whether the machine code of an entry point lies on disk, up to date."""
    return bool(dispatcher._cache._cache_file._load_index())  # noqa: SLF001


def _sources_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
