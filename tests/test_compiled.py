"""Kernels: what they return, when they are compiled anew, and whose machine code is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wattree import compiled
from wattree.cached import cached, store

_MODULE = """
from __future__ import annotations
import sys
from typing import NamedTuple
import numpy as np
from wattree.compiled import kernel, part

FACTOR = {factor}

class Pair(NamedTuple):
    values: object
    weight: float

@part
def scaled(value: float, weight: float) -> float:
    return FACTOR * value * weight

@kernel
def add(pair: Pair, table: object, most: int, is_all: bool) -> bool:
    for i in range(min(len(pair.values), most)):
        table[i, 1] = scaled(pair.values[i], pair.weight)
    return is_all

table = np.zeros((3, 2))
found = add(Pair(np.arange(3.0), 0.5), table, 2, True)
print(found is True, table[:, 1].tolist(), add.is_compiled(), "numba" in sys.modules)
"""


def _printed(folder: Path, *, factor: int) -> str:
    module = folder / "small.py"
    module.write_text(_MODULE.format(factor=factor))
    words = [sys.executable, str(module)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_a_kernel_is_compiled_once_for_all_processes_and_again_when_a_constant_changes(
    tmp_path: Path,
) -> None:
    """Named tuples, tables, whole and truth values go in as they are; numba is not loaded again."""
    first, second = _printed(tmp_path, factor=2), _printed(tmp_path, factor=2)
    third = _printed(tmp_path, factor=4)

    assert first == "True [0.0, 1.0, 0.0] True True"
    assert second == "True [0.0, 1.0, 0.0] True False"
    assert third == "True [0.0, 2.0, 0.0] True True"


def test_where_private_parts_of_numba_are_others_it_compiles_with_documented_ones(
    tmp_path: Path,
) -> None:
    """Results are the same; nothing is kept, and a warning says so."""
    gone = (
        "import wattree.compiled\n"
        "def gone(*_):\n    raise AttributeError('_final_module')\n"
        "wattree.compiled._compiled = gone\n"
    )
    module = tmp_path / "small.py"
    module.write_text(_MODULE.format(factor=2).replace("FACTOR =", f"{gone}FACTOR =", 1))
    words = [sys.executable, str(module)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "True [0.0, 1.0, 0.0] False True"
    assert "RuntimeWarning: __main__.add: machine code cannot be kept" in done.stderr


def test_what_is_kept_is_found_for_its_key_and_unspoilt_only(tmp_path: Path) -> None:
    """Machine code that is cut short must not be run."""
    store(tmp_path / "a.py", "name", "key", b"content")
    found, other = (
        cached(tmp_path / "a.py", "name", "key"),
        cached(tmp_path / "a.py", "name", "new"),
    )
    path = tmp_path / "__pycache__" / "name"
    path.write_bytes(path.read_bytes()[:-1])

    assert (found, other) == (b"content", None)
    assert cached(tmp_path / "a.py", "name", "key") is None


def test_a_folder_that_others_can_write_to_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can write there could have any code run."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    store(tmp_path / "a.py", "name", "key", b"content")
    before = cached(tmp_path / "a.py", "name", "key")
    (tmp_path / "cache" / "wattree").chmod(0o777)

    assert before == b"content"
    assert cached(tmp_path / "a.py", "name", "key") is None


def test_where_nothing_can_be_kept_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where the folder would be."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    store(tmp_path / "a.py", "name", "key", b"content")

    assert cached(tmp_path / "a.py", "name", "key") is None


def test_what_another_process_compiles_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, commands in one process would begin compilers faster than they end."""
    begun: list[Any] = []

    def popen(words: list[str], **_: object) -> SimpleNamespace:
        begun.append(words)
        return SimpleNamespace(kill=lambda: None)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(compiled, "_ELSEWHERE", {})
    kernel: Any = SimpleNamespace(name="package.module.kernel", is_compiled=lambda: False)
    for _ in range(3):
        compiled.compile_elsewhere(_printed, kernel)  # type: ignore[arg-type]

    assert len(begun) == 1


def test_a_folder_that_is_made_is_its_owner_s_whatever_the_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing that is kept in it would be read again."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    before = os.umask(0o002)
    try:
        store(Path(__file__), "name", "key", b"content")
    finally:
        os.umask(before)

    assert cached(Path(__file__), "name", "key") == b"content"


@pytest.mark.parametrize("watched", [True, False])
def test_who_watches_is_told_once_that_kernels_are_compiled(
    *, watched: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal; the standard error of a program that reads it stays as it is."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: watched)
    compiled._say_that_it_compiles.cache_clear()
    for _ in range(2):
        compiled._say_that_it_compiles()

    assert capsys.readouterr().err.count("first run: compiling") == watched
