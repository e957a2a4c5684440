"""A private folder of the user, the same for all of the user's processes on a host."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wattree.errors import OutputError


def private_folder(name: str, bases: Iterable[Path]) -> Path:
    """Return the first folder that is, or can be made, accessible to the user alone.

    In a folder that all users share, such as `/tmp`, another user may have taken the name; then it
    is the next one. The name holds the user and the host, as homes may be shared by hosts.

    Args:
        name: What it is for, as its name begins.
        bases: Folders that it may be in, best first.

    Raises:
        OutputError: There is none; the fault of each.
    """
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
    faults = []
    for base in bases:
        with suppress(OSError):  # where there is no home
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = base / f"{name}-{os.getuid()}-{host}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            faults.append(f"{folder}: cannot be made ({error.strerror})")
            continue
        is_folder, is_ours = stat.S_ISDIR(found.st_mode), found.st_uid == os.getuid()
        if is_folder and is_ours and not found.st_mode & 0o077:
            return folder
        faults.append(f"{folder}: is not yours alone")
    raise OutputError(
        "no folder is yours alone:\n  "
        + "\n  ".join(faults)
        + "\nremove one of them, or set TMPDIR or XDG_RUNTIME_DIR to a folder of yours"
    )
