"""Files that another file names, by folders which may be those of another machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final

from wattree.files import exists, is_file, is_folder

#: How many folders up a file is looked for, and where its folders are only known to a shell.
_MOST_FOLDERS: Final = 8
_MOST_UNKNOWN: Final = 4


def file_next_to(path: Path, name: str) -> Path:
    """Return the file that another one names; the one next to it where there is none.

    It is next to the other, or in the working folder. Scripts name files from the root of their
    project, or of a container: a name with folders is also looked up in the folders above, whole
    and then with fewer of its own.

    Args:
        path: The file that names it.
        name: With its folders.
    """
    here = path.parent / name
    near = (each for each in (here, Path(name)) if exists(each))
    return next(near, None) or next(filter(is_file, _places(path, Path(name))), here)


def is_elsewhere(path: Path, name: str, file: Path) -> bool:
    """Return whether a file is neither next to the one that names it nor in the working folder."""
    return file not in {path.parent / name, Path(name)}


def _places(path: Path, named: Path) -> Iterator[Path]:
    """Yield where a name with folders may lie; of a shell's own folders, in those next to it."""
    parts = [part for part in named.parts if part not in {"/", ".."}]
    is_open = "$" in str(named)
    folders = path.resolve().parents[: _MOST_UNKNOWN if is_open else _MOST_FOLDERS]
    for start, folder in product(range(len(parts) if len(named.parts) > 1 else 0), folders):
        end = Path(*parts[start:])
        if is_open or len(end.parts) > 1 or folder == folders[0]:
            yield folder / end
        if is_open:
            yield from (inner / end for inner in _folders_in(folder))


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in one; none where it cannot be read."""
    try:
        return sorted(each for each in folder.iterdir() if is_folder(each))
    except OSError:
        return []
