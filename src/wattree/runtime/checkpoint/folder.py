"""Names in a checkpoint folder. Everything is created and removed by a rename.

step-N            a whole checkpoint
.step-N.partial   one that is being written, or was when its run was killed
.step-N.old       one that is being removed
damaged-step-N    one that did not hold what was written, when a run went on from an older one
previous-K        checkpoints of a run that `--fresh` moved aside
.fresh            `--fresh` was asked for, and not all are moved yet
"""

from __future__ import annotations

import re
import shutil
from itertools import count
from pathlib import Path

from wattree.files import sync_folder

#: Checkpoints that stay; older ones are removed once a newer one is whole.
MOST_CHECKPOINTS = 2
_NAME = re.compile(r"step-([0-9]{1,12})")
_FRESH = ".fresh"


def steps_in(folder: Path) -> list[int]:
    """Return the steps of the checkpoints in a folder, the newest last."""
    if not folder.is_dir():
        return []
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match.group(1)) for match in found if match is not None)


def place_of(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step}"


def begin_partial(folder: Path, step: int) -> Path:
    """Return a new folder for writing a checkpoint; remove the leftovers of killed runs.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*folder.glob(".step-*.partial"), *folder.glob(".step-*.old")):
        shutil.rmtree(left)
    partial = partial_of(folder, step)
    partial.mkdir()
    return partial


def partial_of(folder: Path, step: int) -> Path:
    """Return the path at which the checkpoint of a step is written."""
    return folder / f".step-{step}.partial"


def finish_partial(folder: Path, step: int) -> Path:
    """Rename a finished checkpoint and remove older ones; return its path.

    Raises:
        OSError: It cannot be renamed.
    """
    partial, whole = partial_of(folder, step), place_of(folder, step)
    sync_folder(partial)
    _remove(whole)
    partial.rename(whole)
    sync_folder(folder)
    # Steps after this one are of no run that is going on: `resume` moves them aside.
    for older in [each for each in steps_in(folder) if each < step][: 1 - MOST_CHECKPOINTS]:
        _remove(place_of(folder, older))
    return whole


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; after a kill it is either complete or unnamed."""
    old = checkpoint.with_name(f".{checkpoint.name}.old")
    if checkpoint.exists():
        checkpoint.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def set_damaged_aside(folder: Path, steps: list[int]) -> None:
    """Move damaged checkpoints aside.

    Raises:
        OSError: They cannot be moved.
    """
    for step in steps:
        place = place_of(folder, step)
        place.rename(_free(folder, f"damaged-{place.name}"))
    sync_folder(folder)


def ask_fresh(folder: Path) -> None:
    """Request that the next `set_run_aside` move the files there, even if this process is killed.

    Raises:
        OSError: It cannot be noted.
    """
    if steps_in(folder):
        (folder / _FRESH).touch()
        sync_folder(folder)


def set_run_aside(folder: Path) -> Path | None:
    """Move the checkpoints of a run that restarts from scratch to another folder; return it.

    None if it was not requested, or an earlier run did it.

    Raises:
        OSError: They cannot be moved.
    """
    if not (folder / _FRESH).exists():
        return None
    steps, aside = steps_in(folder), None
    if steps:
        aside = _free(folder, "previous-1")
        aside.mkdir()
        for step in steps:
            place_of(folder, step).rename(aside / f"step-{step}")
        sync_folder(aside)
    (folder / _FRESH).unlink()
    sync_folder(folder)
    return aside


def _free(folder: Path, name: str) -> Path:
    """Return an unused path: the given name, or with a number at its end."""
    if not (folder / name).exists():
        return folder / name
    stem = name.removesuffix("-1")
    return next(path for number in count(2) if not (path := folder / f"{stem}-{number}").exists())
