"""Files that one process writes so that later ones need not do its work again.

They are stored next to the code, like Python's own, or in the user's cache folder if the code's
folder is read-only. Each has a digest of its inputs: it can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

_DIGEST_BYTES = 32


def cached(source: Path, name: str, key: str) -> bytes | None:
    """Return what was kept under a name and for a key, or None.

    Args:
        source: File of the package that it was made from.
        name: Name of the file that holds it.
        key: What decides whether it is still what would be made today.
    """
    for folder in _folders(source):
        with contextlib.suppress(OSError):
            content = (folder / name).read_bytes()
            if content[:_DIGEST_BYTES] == _digest(name, key, content[_DIGEST_BYTES:]):
                return content[_DIGEST_BYTES:]
    return None


def cached_names(source: Path, beginning: str) -> Iterator[str]:
    """Yield the names, of any key, that begin so."""
    for folder in _folders(source):
        with contextlib.suppress(OSError):
            names = [path.name for path in folder.iterdir()]
            yield from sorted(name for name in names if name.startswith(beginning))


def store(source: Path, name: str, key: str, content: bytes) -> None:
    """Keep what was made; where nothing can be written, it is made again next time."""
    for folder in _folders(source):
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        try:
            # Parents made on the way would have the mode of the user's mask.
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            temporary.write_bytes(_digest(name, key, content) + content)
            temporary.replace(folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
        else:
            return


def prune(source: Path, beginning: str, most: int) -> None:
    """Delete the oldest files whose names begin so, until at most so many are left of a folder."""
    for folder in _folders(source):
        with contextlib.suppress(OSError):
            files = [path for path in folder.iterdir() if path.name.startswith(beginning)]
            newest_first = sorted(files, key=lambda path: path.stat().st_mtime, reverse=True)
            for path in newest_first[most:]:
                path.unlink()


def _folders(source: Path) -> Iterator[Path]:
    """Yield where files made from a source may lie, in the order in which they are tried."""
    # Whoever moves numba's compiled code elsewhere means this too.
    moved, home = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if not moved:
        yield source.parent / "__pycache__"
    with contextlib.suppress(RuntimeError):  # a user without a home
        users = Path(moved or home or Path.home() / ".cache") / "wattree"
        # One folder for each place that the package is installed at.
        folder = users / hashlib.sha256(os.fsencode(source.parent)).hexdigest()[:16]
        if _is_own(users) and _is_own(folder):
            yield folder


def _is_own(folder: Path) -> bool:
    """Return whether no other user can put a file here: machine code is run as it is found."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return True  # it is made, for its owner alone
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _digest(name: str, key: str, content: bytes) -> bytes:
    head = f"{len(name)} {len(key)} {name}{key}".encode()
    return hashlib.sha256(head + content).digest()
