"""What shortens the imports of commands: code of dataclasses, and no search for plugins."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from wattree.cli import dataclass_code


def _made() -> object:
    made = dataclasses.make_dataclass("Made", [("size", int), ("name", str, "none")], frozen=True)
    assert typing.ForwardRef("list[int] | None").__forward_code__.co_filename == "<string>"
    return made(3)


def test_classes_are_the_same_and_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time finds no compiler."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    with dataclass_code.cached_dataclass_code("test"):
        first = _made()
    monkeypatch.setattr(dataclass_code, "compile", None, raising=False)
    with dataclass_code.cached_dataclass_code("test"):
        second = _made()

    assert repr(first) == repr(second) == "Made(size=3, name='none')"
    assert not hasattr(dataclasses, "exec")
    assert not hasattr(typing, "compile")


def test_what_cannot_be_read_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another Python, or none."""
    monkeypatch.setattr(dataclass_code, "cached", lambda *_: b"what no Python writes")
    monkeypatch.setattr(dataclass_code, "store", lambda *_: None)
    with dataclass_code.cached_dataclass_code("test"):
        made = _made()

    assert repr(made) == "Made(size=3, name='none')"


def test_a_command_that_ends_leaves_nothing_to_collect() -> None:
    """The interpreter looks for garbage as it ends: a tenth of the time of `wattree check`."""
    words = (
        "import atexit, gc; from wattree.__main__ import run\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "run()"
    )
    found = subprocess.run(
        [sys.executable, "-c", words, "--version"], check=True, capture_output=True, text=True
    )

    assert int(found.stdout.splitlines()[-1]) < 1000


def test_a_command_does_not_read_the_metadata_of_packages() -> None:
    """Neither pydantic's plugins nor our own extensions are looked for where none is named."""
    words = (
        "import sys; from wattree.cli import main\n"
        "try: main(['check', 'examples/llama-3.1-8b-dgx-h100.yaml'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "print('importlib.metadata' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", words],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )

    assert found.stdout.splitlines()[-1] == "False", found.stderr
