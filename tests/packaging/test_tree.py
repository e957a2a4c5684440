"""Files of the checkout that must hold on every machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".csv", ".txt", ".sh", ".html", ".js", ""}
SKIPPED = re.compile(
    r"^(?:\.git|\.venv|\.hypothesis|\.\w+_cache|__pycache__|build|dist|runs|shared|.*\.egg-info)$"
)

# An absolute path of two parts or more names one machine's folders, unless it starts with one that
# every machine has, or with our own package, as the end of a longer one. Behind another slash it is
# the rest of an address on the web.
MACHINE_PATH = re.compile(
    r"(?<![\w.~}/])/(?!(?:bin|dev|etc|proc|run|sbin|sys|tmp|usr|var|wattree)/)[A-Za-z][\w.-]*/[\w.-]+"
)
# Written so that they do not match themselves.
REGISTRY = re.compile(r"[p]ypi\.org|[p]ythonhosted|[r]egistry\.npmjs|--(?:extra-)?[i]ndex-url")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def texts() -> list[Path]:
    """Return the text files that a clone holds."""
    found: list[Path] = []
    for folder, subfolders, names in os.walk(ROOT):
        # Pruned before descending: an environment holds tens of thousands of files.
        subfolders[:] = [name for name in subfolders if not SKIPPED.match(name)]
        found.extend(
            Path(folder, name)
            for name in names
            if Path(name).suffix in KINDS and not SKIPPED.match(name)  # `.git` may be a file
        )
    return sorted(found)


def hits(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    """Return the places where `pattern` occurs."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in paths
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        )
        for match in pattern.finditer(line)
    ]


def test_no_file_names_a_path_of_one_machine() -> None:
    """What works only where it was written does not work."""
    assert hits(MACHINE_PATH, texts()) == []


def test_no_file_names_a_package_registry() -> None:
    """Which index to use is a matter of the user's own settings."""
    assert hits(REGISTRY, texts()) == []


@pytest.mark.parametrize(
    "page", [path for path in texts() if path.suffix == ".md"], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A page that was renamed leaves no dead link behind."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_patterns_find_what_they_are_for() -> None:
    """A pattern with a slip in it would pass every file."""
    folders = ("home", "Users", "data", "scratch-2")

    assert all(MACHINE_PATH.search(f"see /{folder}/someone/run.yaml") for folder in folders)
    assert all(MACHINE_PATH.search(f'"/{folder}/a"') for folder in folders)
    assert MACHINE_PATH.search("runs/home/a, ~/home/a and 12 ms/home/item") is None
    assert MACHINE_PATH.search("https://example.org/a/b, /dev/shm/a, {folder}/b/c, /plan/") is None
    assert REGISTRY.search("py" + "pi.org") is not None
    assert LINK.findall("[a](b.md#c) [d](https://e.f) [g](#h)") == ["b.md"]
