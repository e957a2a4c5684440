"""Temporary folders with names that identify their process.

A process that is killed leaves its folder behind. The next one that makes such a folder removes
those of processes that are gone: of this user, on this machine since it started, and no others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from wattree.process import numbering, process_of, this_process

#: KIND-NUMBERING-PID-START-DRAW, as `_beginning` and `mkdtemp` write it.
_NAME = re.compile(r"wattree-[a-z]+-(?P<numbering>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?P<start>\w+)-\w+")


def temporary_folder(kind: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder of this process, to be used in a `with` statement.

    Folders of any kind that processes left which were killed are removed first.

    Args:
        kind: What it is for, a word in small letters; part of its name.
    """
    remove_orphans(Path(tempfile.gettempdir()))
    return tempfile.TemporaryDirectory(prefix=_beginning(kind), ignore_cleanup_errors=True)


def remove_orphans(place: Path) -> list[Path]:
    """Remove folders of processes that have ended; return them."""
    here, removed = _numbering(), []
    with contextlib.suppress(OSError):
        for folder in place.glob("wattree-*"):
            match = _NAME.fullmatch(folder.name)
            # Numbers of another boot, container or machine say nothing here.
            if match is None or match["numbering"] != here or not _is_own(folder):
                continue
            process = process_of(int(match["pid"]))
            if process is None or _word(process.start) != match["start"]:
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder)
    return removed


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
    return False


def _beginning(kind: str) -> str:
    process = this_process()
    return f"wattree-{kind}-{_numbering()}-{process.pid}-{_word(process.start)}-"


def _word(start: str) -> str:
    """Return when a process started as part of a name; `ps` writes it as a date."""
    return re.sub(r"\W", "_", start)


def _numbering() -> str:
    return hashlib.sha256(numbering().encode()).hexdigest()[:8]
