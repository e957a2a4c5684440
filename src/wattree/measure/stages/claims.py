"""Which process reads a device: the first that asks, of all that take part in one job.

A claim is a lock on a file in a folder of the user's own; the kernel drops it when the process
ends, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from wattree.private import private_folder


def _bases() -> Iterator[Path]:
    yield Path(tempfile.gettempdir())
    with suppress(RuntimeError):  # a user without a home
        yield Path.home() / ".cache" / "wattree"


class Claims:
    """The devices that this process reads.

    Args:
        job: What the processes of the job have in common.
        folder: Where locks are; None for a private folder of the user among temporary files.

    Raises:
        OutputError: No folder is the user's alone.
    """

    def __init__(self, job: str, *, folder: Path | None = None) -> None:
        self._job = job
        self._folder = folder or private_folder("wattree-claims", _bases())
        self._held: list[int] = []

    def take(self, device: str) -> bool:
        """Return whether this process reads a device; false if another one of the job does.

        A second loop of one process, as in a notebook, reads what the first one does.
        """
        name = hashlib.sha256(f"{self._job}\0{device}".encode()).hexdigest()[:24]
        descriptor = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32)
            os.close(descriptor)
            return holder == str(os.getpid()).encode()
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        self._held.append(descriptor)
        return True

    def release(self) -> None:
        """Give all devices back."""
        for descriptor in self._held:
            # Said to the kernel, because workers that were forked meanwhile hold the file open.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        self._held.clear()
