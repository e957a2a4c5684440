"""Assigns each device to one reading process: the first of the job that claims it.

A claim is a lock on a file in a folder of the user's own; the kernel drops it when the process
ends, however it ends. The file goes with the claim; those of processes that were killed go when
the next claim is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        self._held: dict[int, Path] = {}
        with self._alone():
            for path in self._folder.glob("*.lock"):
                if (descriptor := _locked(path)) is not None:
                    _remove(descriptor, path)

    def take(self, device: str) -> bool:
        """Return whether this process reads a device; False if another one of the job does.

        A second loop of one process, as in a notebook, reads what the first one does.
        """
        name = hashlib.sha256(f"{self._job}\0{device}".encode()).hexdigest()[:24]
        path, own = self._folder / f"{name}.lock", str(os.getpid())
        with self._alone():
            descriptor = _locked(path)
            if descriptor is None:
                return path.read_text("ascii") == own
            path.write_text(own, "ascii")
        self._held[descriptor] = path
        return True

    def release(self) -> None:
        """Release all devices."""
        with self._alone():
            for descriptor, path in self._held.items():
                _remove(descriptor, path)
        self._held.clear()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold a lock while locks are checked, so that no process opens a file being removed."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            _unlock(descriptor)


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds the lock of a file; None if another descriptor holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(descriptor: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    _unlock(descriptor)


def _unlock(descriptor: int) -> None:
    # Said to the kernel, because workers that were forked meanwhile hold the file open.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
