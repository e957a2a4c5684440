"""The files that a user's module was made from, to tell whether a stored graph is still its own."""

from __future__ import annotations

import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

#: Larger files, and installed ones, are told apart by size and time. [B]
_READ_BYTES: Final = 2**20
#: What else a module's code may depend on: its graph is not stored.
_ELSEWHERE: Final = re.compile(rb"environ|getenv|argv")
_SYSTEM: Final = ("/proc/", "/sys/", "/dev/")
#: The code here, for which `kept_graphs` has a digest.
_HERE: Final = str(Path(__file__).parents[1])
#: Modules of this process before the first of a user was imported, and when. [ns]
_BEFORE: Final = frozenset(sys.modules)
_START_NS: Final = time.time_ns()
#: What is open for reading goes to each of these: the interpreter's hooks stay.
_HEARING: Final[list[set[str]]] = []
_Made = TypeVar("_Made")


def with_files(make: Callable[[], _Made]) -> tuple[_Made, dict[str, str] | None]:
    """Return what a function makes, and the state of each file it was made from.

    These are the files of all imported modules, and those opened on the way. None instead where
    they do not decide: one is newer than this process, was imported before, or reads variables.
    """
    with _watching() as opened:
        made = make()
    modules = _imported()
    own = {path for path in (*modules, *opened) if not _is_installed(path)}
    if any(name in _BEFORE for path in own for name in modules.get(path, ())):
        return made, None
    if any(_is_newer(path) or _reads_elsewhere(path) for path in own):
        return made, None
    folders = {str(Path(path).parent) for path in own}
    return made, {path: state(path) for path in (*modules, *own, *folders)}


def state(path: str) -> str:
    """Return what changes with a file: of code its content; of a folder its modules' names."""
    place = Path(path)
    try:
        if place.is_dir():
            return repr(sorted(each.name for each in place.glob("*.py")))
        status = place.stat()
        if status.st_size > _READ_BYTES or _is_installed(path):
            return f"{status.st_size} {status.st_mtime_ns}"
        return sha256(place.read_bytes()).hexdigest()
    except OSError:
        return "none"


@contextmanager
def _watching() -> Iterator[set[str]]:
    """Collect the files that are opened for reading while entered."""
    _install_hook()
    opened = set[str]()
    _HEARING.append(opened)
    try:
        yield opened
    finally:
        _HEARING.pop()


@cache
def _install_hook() -> None:
    sys.addaudithook(_hear)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _HEARING and event == "open" and isinstance(arguments[0], str):
        path, mode, _ = arguments
        if not path.endswith(".pyc") and not set(mode or "r") & set("wax+"):
            _HEARING[-1].add(str(Path(path).absolute()))


def _imported() -> dict[str, list[str]]:
    """Return the file of each imported module but PyTorch's and our own, and its names.

    Versions and `kept_graphs` stand for those.
    """
    found: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name != "__main__" and name.partition(".")[0] not in {"torch", "wattree"}:
            found.setdefault(str(Path(file).absolute()), []).append(name)
    return found


@cache
def _is_installed(path: str) -> bool:
    is_package = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return bool(is_package) or path.startswith((*_SYSTEM, _HERE, sysconfig.get_path("stdlib")))


def _is_newer(path: str) -> bool:
    try:
        return Path(path).stat().st_mtime_ns >= _START_NS
    except OSError:  # deleted since, or only looked for
        return False


def _reads_elsewhere(path: str) -> bool:
    is_code = path.endswith(".py") and Path(path).is_file()
    return is_code and _ELSEWHERE.search(Path(path).read_bytes()) is not None
