"""Lock of a checkpoint folder, `lock.json`: only one run at a time writes into it.

A file, not a lock of the system: those are silently local on some shared file systems. It is made
whole by a link, which fails where there is one. The lock of a process of this machine that is gone
is taken over; whether one of another machine still runs cannot be asked, and is left to the user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

from wattree.errors import RunError
from wattree.files import write_atomic
from wattree.json_text import parsed_object
from wattree.process import Process, is_alive, numbering, this_process

LOCK = "lock.json"
#: File systems without links say so in one of these ways.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
#: Ranks whose launcher was killed end within a second; the next run may have begun by then. [s]
PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.02


class FolderOwner:
    """Ownership of a checkpoint folder by this process.

    Args:
        folder: The folder; made where there is none.
        patience_s: How long to wait for the end of a run of this machine. [s]
    """

    def __init__(self, folder: Path, *, patience_s: float = PATIENCE_S) -> None:
        self._folder, self._path, self._patience_s = folder, folder / LOCK, patience_s
        process = this_process()
        record = {
            "pid": process.pid,
            "start": process.start,
            "numbering": numbering(),
            "host": socket.gethostname(),
            "machine": _machine(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            "token": uuid.uuid4().hex,
        }
        self._mine = json.dumps(record).encode()

    def acquire(self) -> None:
        """Acquire the folder.

        Raises:
            RunError: Another run has it, or it cannot be written to.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            until_s = time.monotonic() + self._patience_s
            while not (self._made() or self._taken_over(is_last=time.monotonic() > until_s)):
                time.sleep(_LOOK_EVERY_S)
        except OSError as error:
            raise RunError(
                str(self._folder),
                [f"cannot be written to ({error.strerror}); expected a folder for checkpoints"],
            ) from error

    def check(self) -> None:
        """Raise if the lock now belongs to another process.

        Raises:
            RunError: Someone removed it.
        """
        if not self._is_mine():
            raise RunError(
                str(self._path),
                [
                    "was removed while this run used the folder, and another may write there now; "
                    "the checkpoints before are whole: end the other, or go on elsewhere"
                ],
            )

    def release(self) -> None:
        """Release the folder, unless another process removed the lock and acquired it."""
        with contextlib.suppress(OSError):
            if self._is_mine():
                self._path.unlink()

    def _is_mine(self) -> bool:
        try:
            return self._path.read_bytes() == self._mine
        except FileNotFoundError:
            return False

    def _made(self) -> bool:
        """Create the lock if there is none."""
        whole = self._path.with_name(f".{LOCK}.{uuid.uuid4().hex[:12]}")
        whole.write_bytes(self._mine)
        try:
            os.link(whole, self._path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._made_without_links()
        finally:
            whole.unlink()
        return True

    def _made_without_links(self) -> bool:
        try:
            with self._path.open("xb") as file:
                file.write(self._mine)
        except FileExistsError:
            return False
        return True

    def _taken_over(self, *, is_last: bool) -> bool:
        """Take over the lock of a process that has ended.

        Args:
            is_last: Refuse one that still runs; it is looked at again otherwise.

        Raises:
            RunError: It is not known to be gone.
        """
        import fcntl

        try:
            with self._path.open("rb") as file:
                there = file.read()
                if not self._is_gone(there, is_last=is_last):
                    return False
                # All who may take it over are on this machine: one does it, others look again.
                with contextlib.suppress(OSError):
                    fcntl.flock(file, fcntl.LOCK_EX)
                if self._path.read_bytes() != there:
                    return False
                write_atomic(self._path, self._mine)
                return True
        except FileNotFoundError:
            return False

    def _is_gone(self, there: bytes, *, is_last: bool) -> bool:
        try:
            record: dict[str, Any] = parsed_object(there)
            process = Process(int(record["pid"]), str(record["start"]))
            where, its_numbering = str(record["host"]), str(record["numbering"])
            machine, since = str(record["machine"]), str(record["since"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                str(self._path),
                [f"cannot be read ({error}); remove it if no run writes into this folder"],
            ) from error
        owner = f"process {process.pid} on {where} (since {since})"
        if its_numbering == numbering():
            if is_alive(process) and is_last:
                raise RunError(
                    str(self._folder),
                    [
                        f"is in use by {owner}, and one run at a time writes into a folder; wait "
                        "for its end, or name another training.checkpoint.dir"
                    ],
                )
            return not is_alive(process)
        if machine and machine == _machine() and _boot(its_numbering) != _boot(numbering()):
            return True  # this machine was started again since
        raise RunError(
            str(self._folder),
            [
                f"is locked by {owner}, which cannot be asked from {socket.gethostname()} whether "
                f"it still runs; if it has ended, remove {self._path} and run again, else name "
                "another training.checkpoint.dir"
            ],
        )


def _boot(its_numbering: str) -> str:
    return its_numbering.partition(" ")[0]


def _machine() -> str:
    """Return this host's name with the system's machine id; empty if it has no such id."""
    with contextlib.suppress(OSError):
        name = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
        return f"{socket.gethostname()} {name}" if name else ""
    return ""
