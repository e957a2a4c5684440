"""The lock files: what `constraints.txt` and `pyproject.toml` say, with hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("lock-base.txt", "lock-dev.txt")
_ENTRY = re.compile(r"^([\w.\-]+)(?:\[[^\]]*\])?==([^\s;]+)(?: ; ([^\\]+))?", re.MULTILINE)
_NAME = re.compile(r"^[\w.\-]+")


def plain(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(file: str) -> dict[str, str]:
    """Return the version of each package of a file that this platform installs."""
    found = _ENTRY.findall((ROOT / file).read_text(encoding="utf-8"))
    return {plain(name): version for name, version, marker in found if not marker}


def wanted(file: str) -> set[str]:
    """Return the packages that the project itself asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = list(project["dependencies"])
    if "dev" in file:
        asked += project["optional-dependencies"]["dev"]
    return {plain(found.group()) for text in asked if (found := _NAME.match(text))}


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_the_versions_of_the_constraints(file: str) -> None:
    """`make lock` was not run after a change: what is tested is not what the lock installs."""
    locked, constrained = versions(file), versions("constraints.txt")

    assert {name: constrained.get(name) for name in locked} == locked


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_all_that_the_project_asks_for(file: str) -> None:
    """A dependency that was added since would not be installed."""
    assert wanted(file) - set(versions(file)) == set()


@pytest.mark.parametrize("file", LOCKS)
def test_every_entry_of_a_lock_has_hashes_and_no_address(file: str) -> None:
    """Pip rejects one without; the address of the index must not appear."""
    text = (ROOT / file).read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[\w.\-]+(?:\[[^\]]*\])?==)", text)[1:]

    assert len(entries) == len(_ENTRY.findall(text))
    assert [each.split("\n")[0] for each in entries if "--hash=sha256:" not in each] == []
    assert "://" not in text
    assert "--index" not in text
