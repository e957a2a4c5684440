"""Folders that are the user's alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wattree.errors import OutputError
from wattree.private import private_folder


def _file(place: Path) -> None:
    place.write_text("taken")


def _link(place: Path) -> None:
    place.symlink_to(place.parent)


def _readable(place: Path) -> None:
    place.mkdir()
    place.chmod(0o755)


def _of_another(place: Path) -> None:
    place.mkdir(mode=0o700)
    os.chown(place, os.getuid() + 1, -1)


TAKEN = [
    _file,
    _link,
    _readable,
    pytest.param(_of_another, marks=pytest.mark.root),
]


@pytest.mark.parametrize("take", TAKEN)
def test_a_name_that_is_taken_blocks_nobody(tmp_path: Path, take: Callable[[Path], None]) -> None:
    """Whoever may write in a shared folder can take a name there; the next folder is used."""
    first, second = tmp_path / "shared", tmp_path / "home" / "cache"
    name = private_folder("wattree-test", [first]).name
    (first / name).rmdir()
    take(first / name)

    found = private_folder("wattree-test", [first, second])

    assert (found, found.stat().st_mode & 0o777) == (second / name, 0o700)
    assert private_folder("wattree-test", [first, second]) == found


@pytest.mark.parametrize("take", TAKEN)
def test_where_all_are_taken_each_is_named(tmp_path: Path, take: Callable[[Path], None]) -> None:
    """And what can be done."""
    place = private_folder("wattree-test", [tmp_path])
    place.rmdir()
    take(place)

    with pytest.raises(OutputError, match=r"set TMPDIR or XDG_RUNTIME_DIR") as caught:
        private_folder("wattree-test", [tmp_path, Path("/proc/nowhere")])

    assert f"{place}: " in str(caught.value)
    assert "/proc/nowhere/" in str(caught.value)
