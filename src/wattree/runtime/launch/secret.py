"""The secret by which launchers of one run authenticate each other.

A launcher takes it from the environment, from a file that the environment names, or else from a
file of the user, which it makes when it is missing. Hosts that share the user's home directory
share that file; others have to be given the secret.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from wattree.errors import RunError
from wattree.runtime.colocation.state import state_root

#: The secret itself, and the file that holds it.
SECRET, SECRET_FILE = "WATTREE_LAUNCH_SECRET", "WATTREE_LAUNCH_SECRET_FILE"
#: Shorter ones can be guessed; what is longer is another file. [B]
_SHORTEST, _LONGEST = 16, 4096
_NAME = "launch.secret"


def run_secret(environment: Mapping[str, str]) -> bytes:
    """Return the secret of a run.

    Raises:
        RunError: It is too short, cannot be read, or others may read the user's own file.
    """
    if SECRET in environment:
        return _checked(SECRET, environment[SECRET].encode())
    if SECRET_FILE in environment:
        return _read(Path(environment[SECRET_FILE]))
    path = _users_file(environment)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise RunError(str(path), ["may be read by others; expected mode 600 (chmod 600 FILE)"])
    return _read(path)


def _users_file(environment: Mapping[str, str]) -> Path:
    """Return the file of the user, made where it is missing.

    Without a home directory that can be written, it is a file of this host alone.
    """
    home = environment.get("XDG_CONFIG_HOME") or str(
        Path(environment.get("HOME") or "/nonexistent", ".config")
    )
    path = Path(home, "wattree", _NAME)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return _made(path)
    return _made(state_root(environment) / _NAME)


def _made(path: Path) -> Path:
    """Create the file atomically: several launchers may start at the same moment."""
    if path.exists():
        return path
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(32)}\n")
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(part)
    finally:
        part.unlink()
    return path


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _checked(str(path), file.read(_LONGEST + 1))
    except OSError as error:
        raise RunError(
            str(path), [f"cannot be read ({error.strerror}); expected the secret of the run"]
        ) from error


def _checked(where: str, found: bytes) -> bytes:
    secret = found.strip()
    if not _SHORTEST <= len(secret) <= _LONGEST:
        raise RunError(
            where,
            [
                f"found {len(secret)} bytes, expected a secret of {_SHORTEST} to {_LONGEST}, such "
                "as `openssl rand -hex 32` prints"
            ],
        )
    return secret
