"""Code of dataclasses, kept from one process to the next."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from wattree.cli import dataclass_code


def _made() -> object:
    made = dataclasses.make_dataclass("Made", [("size", int), ("name", str, "none")], frozen=True)
    return made(3)


def test_classes_are_the_same_and_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time finds no compiler."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    with dataclass_code.kept_dataclass_code("test"):
        first = _made()
    monkeypatch.setattr(dataclass_code, "compile", None, raising=False)
    with dataclass_code.kept_dataclass_code("test"):
        second = _made()

    assert repr(first) == repr(second) == "Made(size=3, name='none')"
    assert not hasattr(dataclasses, "exec")


def test_what_cannot_be_read_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another Python, or none."""
    monkeypatch.setattr(dataclass_code, "cached", lambda *_: b"what no Python writes")
    monkeypatch.setattr(dataclass_code, "store", lambda *_: None)
    with dataclass_code.kept_dataclass_code("test"):
        made = _made()

    assert repr(made) == "Made(size=3, name='none')"
