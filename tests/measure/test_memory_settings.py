"""Memory that is freed: kept for the next step, unless the user has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from wattree.measure.allocator import cache_freed_memory
print(cache_freed_memory())
block = bytes(8 << 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    del block
    block = b"1" * (8 << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _said(**environment: str) -> tuple[bool, int]:
    """Return whether memory is kept, and the page faults of ten blocks of 8 MiB."""
    unset = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**unset, **environment},
    )
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_freed_blocks_are_used_again() -> None:
    """Once mapped, their pages stay."""
    kept, faults = _said()
    if not kept:
        pytest.skip("another C library")

    assert faults < 2 * (8 << 20) / 4096


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_said_stays(name: str) -> None:
    """Whatever it is."""
    value = "2" if name == "MALLOC_ARENA_MAX" else "glibc.malloc.arena_max=2"

    assert not _said(**{name: value})[0]
