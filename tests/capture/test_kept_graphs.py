"""A captured model is captured once, whatever command asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wattree import cached
from wattree.capture import kept_graphs
from wattree.capture.catalog_entries import catalog_entry
from wattree.capture.configuration import model_from_config
from wattree.graph import ModelGraph

CONFIG = dict(catalog_entry("llama-3.2-1b").config or {}) | {"num_hidden_layers": 2}


class _Captures:
    """Counts how often a model was captured; each time it is another process that asks."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, sequence: int = 32, where: str = "a") -> ModelGraph:
        kept_graphs._GRAPHS.clear()
        return kept_graphs.kept_graph(CONFIG, where, (sequence,), self._capture)

    def _capture(self) -> ModelGraph:
        self.count += 1
        return model_from_config(CONFIG, "a")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kept_graphs, "_GRAPHS", {})
    return tmp_path


def test_a_captured_model_is_kept_between_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And captured again for another length, and where what was kept is damaged or gone."""
    captures = _Captures()
    said: list[str] = []
    monkeypatch.setattr(kept_graphs, "announce", said.append)

    first = captures()
    assert captures() == first
    assert captures.count == 1
    assert said == ["a: capturing the model, up to a minute; later commands load its graph."]

    captures(sequence=64)
    captures(where="b")
    assert captures.count == 3

    monkeypatch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")
    captures()
    assert captures.count == 4
    monkeypatch.delenv("TRANSFORMERS_SDPA_FORCE_GQA")

    for path in folder.rglob("graph.*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert captures() == first
    assert captures.count == 5


def test_the_oldest_are_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody asks for any more does not stay for ever."""
    captures = _Captures()
    monkeypatch.setattr(kept_graphs, "_MOST", 3)

    for sequence in range(1, 6):
        captures(sequence=sequence)
    assert len(list(folder.rglob("graph.*"))) == 3

    captures(sequence=5)
    assert captures.count == 5


def test_a_few_files_are_all_left(folder: Path) -> None:
    """Of fewer than there may be, none is the oldest."""
    for name in ("graph.a", "graph.b", "other"):
        cached.store(Path(kept_graphs.__file__), name, "", b"")

    cached.prune(Path(kept_graphs.__file__), "graph.", 3)

    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        "graph.a",
        "graph.b",
        "other",
    ]


def test_tables_are_part_of_what_makes_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules of operators are listed in a table: graphs made with another one are not taken."""
    table = tmp_path / "capture" / "operators.yaml"
    table.parent.mkdir()
    table.write_text("copy: [clone]", encoding="utf-8")
    monkeypatch.setattr(kept_graphs, "_HERE", table.with_name("kept_graphs.py"))

    before = kept_graphs._sources.__wrapped__()
    table.write_text("copy: [clone, to]", encoding="utf-8")

    assert kept_graphs._sources.__wrapped__() != before
